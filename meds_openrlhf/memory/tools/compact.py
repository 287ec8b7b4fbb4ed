"""Merging the small segments that restarts leave, with every snapshot kept restorable.

The new memory is built beside the old one, checked, and put in its place by renames (`folder_swap`). A batch stays the
batch that it was, so a snapshot that ended at one ends at the same one still. No segment's name is used again for other
content: a full segment is linked, not copied, and what is written anew, or comes behind such, gets a number of its own.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.folder_lock import LOCK_NAME, FolderLock
from meds_openrlhf.memory.log import EARLIER_NAME, SEGMENT_BYTES
from meds_openrlhf.memory.segment import SegmentState, encode_batch
from meds_openrlhf.memory.segment_index import SegmentIndex, index_path, scan_segment, write_index
from meds_openrlhf.memory.snapshot import Snapshot, commit_snapshot, read_snapshot, read_states, write_states
from meds_openrlhf.memory.stored_segment import StoredSegment
from meds_openrlhf.memory.tools.folder_swap import clear_building_site, put_in_place, settle, sole_driver
from meds_openrlhf.memory.tools.stored_memory import StoredMemory, compacted_folder, memory_root, open_memory, run_of
from meds_openrlhf.memory.tools.verify import mismatch, verify_memory
from meds_openrlhf.paths import SEGMENT_PATH, MemoryPaths, segment_name, sync_folder, write_atomically


@dataclass(frozen=True)
class Size:
    """Segments of a memory and their bytes."""

    segments: int
    bytes: int


@dataclass(frozen=True)
class Run:
    """Segments that follow on each other and become one chain; one alone stays as it is, unless its tail is torn."""

    old: list[StoredSegment]

    @property
    def rewritten(self) -> bool:
        """Whether its segments are written anew."""
        return len(self.old) > 1 or self.old[0].path.stat().st_size > self.old[0].index.bytes


@dataclass(frozen=True)
class Moved:
    """A run and the segments, by name, that hold the same batches in the new memory."""

    run: Run
    new: dict[str, SegmentIndex]

    def states(self, held: dict[str, SegmentState]) -> list[SegmentState]:
        """What a snapshot that named ``held`` of the old segments names of the new ones.

        Raises ValueError where these are not the run's first batches.
        """
        named = [segment for segment in self.run.old if segment.name in held]
        if named != self.run.old[: len(named)]:
            raise ValueError("it leaves out a segment before others")
        if any(held[segment.name].batches < len(segment.index.batches) for segment in named[:-1]):
            raise ValueError("it ends within a segment before others")
        batches = sum(held[segment.name].batches for segment in named)
        states = []
        for name, index in self.new.items():
            taken = min(batches, len(index.batches))
            if taken:
                states.append(_state_after(name, index, taken))
            batches -= taken
        return states


def compact_memory(folder: Path, segment_bytes: int = SEGMENT_BYTES) -> tuple[Size, Size]:
    """Merge what can be merged of the memory in ``folder`` (a run's or its own); its size before and after.

    A segment is full from ``segment_bytes`` on. First an earlier compaction that was interrupted is finished or undone.
    Raises ConfigError where the memory is in use, and MemoryCorruptionError, with nothing changed, where it is damaged.
    """
    root = memory_root(folder)
    with sole_driver(run_of(root), root):
        root = root.resolve()
        settle(root)
        memory = open_memory(folder)
        with _sole_writer(memory):
            before = _size_of(memory.paths)
            _require_sound(memory)
            runs = plan_runs(memory.segments(), segment_bytes)
            if not any(run.rewritten for run in runs):
                return before, before
            target = MemoryPaths(compacted_folder(root))
            clear_building_site(target.root)
            _build(memory, runs, target, segment_bytes)
            _require_same_rows(memory, replace(memory, paths=target))
            after = _size_of(target)
            put_in_place(root)
    return before, after


def plan_runs(segments: list[StoredSegment], segment_bytes: int) -> list[Run]:
    """Which of ``segments`` (in the order of the log) to merge with which: only where that makes them fewer.

    Never across a full segment, nor across a time at which the prompts were divided otherwise: a prompt's rows of that
    time lie in other segments, and would come behind rows that are younger.
    """
    eras = groupby(segments, key=lambda segment: segment.index.sharding.shards)
    era_of = {segment.name: era for era, (_, members) in enumerate(eras) for segment in members}

    def mergeable(segment: StoredSegment) -> tuple[object, ...]:
        full = segment.index.bytes >= segment_bytes
        return segment.path.parent, segment.index.sharding, era_of[segment.name], segment.name if full else None

    runs = []
    for _, members in groupby(sorted(segments, key=lambda segment: segment.name), key=mergeable):
        run = list(members)
        merged = -(-sum(segment.index.bytes for segment in run) // segment_bytes)  # at most so many
        runs += [Run(run)] if merged < len(run) else [Run([segment]) for segment in run]
    return runs


# ── building ──


def _build(memory: StoredMemory, runs: list[Run], target: MemoryPaths, segment_bytes: int) -> None:
    """Make the new memory, durable to the last file."""
    moved: list[Moved] = []
    for folder, own in groupby(runs, key=lambda run: run.old[0].path.parent):
        moved += _build_folder(memory, list(own), target.root / folder.name, segment_bytes)
    for path in memory.manifests():
        _carry_snapshot(path, moved, target)
    for path in memory.paths.root.glob(f"shard-*/{EARLIER_NAME}"):
        states = _carried(path, read_states(path), moved)
        write_atomically(target.root / path.relative_to(memory.paths.root), write_states(states))
    for path in sorted(memory.paths.root.rglob("*")):
        if path.is_file() and not _is_made_anew(path.relative_to(memory.paths.root)):
            copy = target.root / path.relative_to(memory.paths.root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
            _sync_file(copy)
    for folder in [target.root, *(path for path in target.root.rglob("*") if path.is_dir())]:
        sync_folder(folder)


def _build_folder(memory: StoredMemory, runs: list[Run], folder: Path, segment_bytes: int) -> list[Moved]:
    """One shard's folder. Names stay up to the first segment that is written anew, and begin afresh from there."""
    folder.mkdir(parents=True)
    number = int(runs[-1].old[-1].path.stem)
    renamed = False
    moved = []
    for run in runs:
        renamed = renamed or run.rewritten
        if run.rewritten:
            new = _write_run(memory, run, folder, number + 1, segment_bytes)
            number += len(new)
        else:
            number += renamed
            name = segment_name(number) if renamed else run.old[0].path.name
            new = [_share(run.old[0], folder / name)]
        moved.append(Moved(run, {f"{folder.name}/{path.name}": index for path, index in new}))
    return moved


def _write_run(
    memory: StoredMemory, run: Run, folder: Path, number: int, segment_bytes: int
) -> list[tuple[Path, SegmentIndex]]:
    """Write a run's batches into as few segments as the log itself would, numbered from ``number``."""
    schema = memory.schema.with_metadata(run.old[0].index.sharding.metadata)
    places = deque((segment, batch) for segment in run.old for batch in range(len(segment.index.batches)))
    written: list[tuple[Path, SegmentIndex]] = []
    while places:
        path = folder / segment_name(number + len(written))
        with path.open("xb") as file:
            while places and file.tell() < segment_bytes:
                segment, batch = places.popleft()
                step = segment.index.batches[batch].step
                file.write(encode_batch(segment.read(batch), step, schema, first=file.tell() == 0)[0])
            file.flush()
            os.fsync(file.fileno())
        written.append((path, _index_of(path, memory)))
    before = [entry.crc32 for segment in run.old for entry in segment.index.batches]
    assert [entry.crc32 for _, index in written for entry in index.batches] == before
    return written


def _index_of(path: Path, memory: StoredMemory) -> SegmentIndex:
    """The index of a segment just written, from reading it back; it lies beside it from now on."""
    index = scan_segment(path, memory.schema)
    assert index is not None
    write_index(path, index)
    _sync_file(index_path(path))
    return index


def _share(segment: StoredSegment, path: Path) -> tuple[Path, SegmentIndex]:
    """Give the new memory a segment as it is; neither memory ever changes a file that they share."""
    try:
        os.link(segment.path, path)
    except OSError:  # not on this file system
        shutil.copyfile(segment.path, path)
    write_index(path, segment.index)
    _sync_file(path)
    return path, segment.index


def _carry_snapshot(path: Path, moved: list[Moved], target: MemoryPaths) -> None:
    """Name the new segments in a manifest. One that fits no longer (`verify_memory` lets it pass) stays as it is."""
    snapshot = read_snapshot(path)
    held = {state.name: state for state in snapshot.segments}
    indices = {segment.name: segment.index for one in moved for segment in one.run.old}
    if any(mismatch(state, indices.get(name)) for name, state in held.items()):
        shutil.copy2(path, target.snapshot(path.stem))
        return
    states = _carried(path, snapshot.segments, moved)
    commit_snapshot(target, path.stem, Snapshot(snapshot.format, snapshot.config_hash, states))


def _carried(path: Path, states: list[SegmentState], moved: list[Moved]) -> list[SegmentState]:
    """What the file ``path``, which names ``states`` of the old segments, names of the new ones."""
    held = {state.name: state for state in states}
    try:
        new = [state for one in moved for state in one.states(held)]
    except ValueError as error:
        raise MemoryCorruptionError(f"{path}: cannot be kept, {error}; remove it if no checkpoint needs it") from None
    assert sum(state.rows for state in new) == sum(state.rows for state in states)
    return sorted(new, key=lambda state: state.name)


def _state_after(name: str, index: SegmentIndex, batches: int) -> SegmentState:
    last = index.batches[batches - 1]
    rows = sum(entry.rows for entry in index.batches[:batches])
    return SegmentState(name, index.sharding.shards, last.end, rows, batches, last.running_crc32)


def _is_made_anew(relative: Path) -> bool:
    """Whether the compaction makes this file itself, or nobody needs it; whatever else lies there comes along."""
    is_segment = SEGMENT_PATH.fullmatch(str(relative.with_suffix(".arrow"))) and relative.suffix in (".arrow", ".index")
    is_manifest = relative.parent == Path("snapshots") and relative.suffix == ".json"
    return bool(is_segment) or is_manifest or relative.name in (LOCK_NAME, EARLIER_NAME) or relative.suffix == ".tmp"


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


# ── guards ──


@contextmanager
def _sole_writer(memory: StoredMemory) -> Iterator[None]:
    """Hold all shards' folders. Raises ConfigError where one is being written."""
    with ExitStack() as stack:
        for folder in memory.paths.shard_folders().values():
            lock = FolderLock(folder, patience_seconds=0.0)
            try:
                lock.acquire()
            except MemoryBusyError as error:
                mend = f"is in use ({error}); compact when the run has stopped"
                raise ConfigError("RUN", str(memory.paths.root), mend) from error
            stack.callback(lock.release)
        yield


def _require_sound(memory: StoredMemory) -> None:
    damage = verify_memory(memory).damage
    if damage:
        raise MemoryCorruptionError(f"{damage[0].text} ({len(damage)} findings; nothing was changed)")


def _require_same_rows(old: StoredMemory, new: StoredMemory) -> None:
    """Read back everything that was built."""
    found = verify_memory(new)
    rows = sum(entry.rows for segment in old.segments() for entry in segment.index.batches)
    if found.damage or found.rows != rows:
        what = found.damage[0].text if found.damage else f"{new.paths.root}: has {found.rows} of {rows} rows"
        raise MemoryCorruptionError(f"{what}; the disk did not keep what was written, and nothing was changed")


def _size_of(paths: MemoryPaths) -> Size:
    sizes = [path.stat().st_size for folder in paths.shard_folders().values() for path in folder.glob("*.arrow")]
    return Size(len(sizes), sum(sizes))
