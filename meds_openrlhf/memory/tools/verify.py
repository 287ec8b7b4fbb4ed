"""Whether a memory on the disk is what was written: every checksum, count, index, shard and manifest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.memory.branch import BRANCH_SNAPSHOT
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.routing import shard_of
from meds_openrlhf.memory.segment import SegmentState, Sharding, read_batches, read_schema
from meds_openrlhf.memory.segment_index import SegmentIndex, index_path, read_index
from meds_openrlhf.memory.snapshot import Snapshot, read_snapshot
from meds_openrlhf.memory.tools.stored_memory import StoredMemory
from meds_openrlhf.paths import name_in_memory


@dataclass(frozen=True)
class Finding:
    """One line that names the file; ``damage`` is false for what is worth knowing and yet as it should be."""

    text: str
    damage: bool = True


@dataclass
class Verification:
    """What was looked at, and what was found."""

    segments: int = 0
    rows: int = 0
    snapshots: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def damage(self) -> list[Finding]:
        """The findings that are damage; none of a sound memory."""
        return [finding for finding in self.findings if finding.damage]

    def add(self, file: Path, text: str, damage: bool = True) -> None:
        """Note a finding about a file."""
        self.findings.append(Finding(f"{file}: {text}", damage))


@dataclass(frozen=True)
class _Rows:
    """Which rows a segment holds: ``keys`` (n,) int64, step and sample in one number each."""

    path: Path
    keys: NDArray[np.int64]


def verify_memory(memory: StoredMemory) -> Verification:
    """Read everything that the memory has and compare it with whatever says how it should be.

    Manifests are read before segments, and an index before its segment: a run that goes on only ever adds to what these
    describe. A snapshot that no whole checkpoint of the run names is left over from a step that a restart has undone;
    that it does not fit is no damage.
    """
    report = Verification()
    snapshots = _read_snapshots(memory, report)
    indices: dict[str, SegmentIndex] = {}
    rows: list[_Rows] = []
    for shard, paths in memory.segment_files().items():
        for path in paths:
            scan = _Scan(memory, path, shard, newest=path == paths[-1], report=report)
            if scan.run():
                indices[name_in_memory(path)] = scan.index
                rows.append(_Rows(path, np.concatenate([*scan.keys, np.empty(0, np.int64)])))
    needed = _needed_snapshots(memory)
    for path, snapshot in snapshots.items():
        _check_snapshot(memory, path, snapshot, indices, needed is None or path.stem in needed, report)
    _check_unique(rows, report)
    report.segments, report.rows = len(indices), sum(len(one.keys) for one in rows)
    report.snapshots = len(snapshots)
    return report


class _Scan:
    """One segment read from end to end. ``index`` is of what is sound, up to the first damage."""

    def __init__(self, memory: StoredMemory, path: Path, shard: int, *, newest: bool, report: Verification) -> None:
        self._schema = memory.schema
        self._path = path
        self._shard = shard
        self._newest = newest
        self._report = report
        self.keys: list[NDArray[np.int64]] = []

    def run(self) -> bool:
        """Look at everything; False where there is nothing of a segment."""
        try:
            has_index = index_path(self._path).exists()
            kept = read_index(self._path) if has_index else None
            size = self._path.stat().st_size
            schema = read_schema(self._path)
        except FileNotFoundError:
            return False  # the run has just removed it
        if schema is None:
            self._torn(size)
            return False
        try:
            self.index = SegmentIndex(Sharding.of(schema, self._path))
            for batch, entry in read_batches(self._path, self._schema):
                self.index.add(batch, entry)
                self._check_steps(batch, entry.step)
            self._torn(size - self.index.bytes)
        except MemoryCorruptionError as error:
            self._report.findings.append(Finding(str(error)))
            return hasattr(self, "index")
        self._check_shard()
        if has_index:
            self._check_index(kept)
        return True

    def _torn(self, excess: int) -> None:
        if excess > 0:
            what = "being written, or left by a process that died" if self._newest else "though others came after it"
            text = f"{excess} bytes behind its last whole batch are torn ({what})"
            self._report.add(self._path, text, damage=not self._newest)

    def _check_steps(self, batch: pa.RecordBatch, step: int) -> None:
        steps = batch.column("step").to_numpy().astype(np.int64)
        if len(self.index.batches) > 1 and step < self.index.batches[-2].step:
            self._report.add(self._path, f"step {step} comes after step {self.index.batches[-2].step}")
        self.keys.append((steps << 32) | batch.column("sample").to_numpy().astype(np.int64))

    def _check_shard(self) -> None:
        sharding = self.index.sharding
        if sharding.shard != self._shard:
            self._report.add(self._path, f"says that shard {sharding.shard} wrote it, and lies in another's folder")
        strangers = {key for key in self.index.prompts if shard_of(key, sharding.shards) != sharding.shard}
        if strangers:
            text = f"holds prompts that belong to another shard than {sharding.shard} of {sharding.shards}"
            self._report.add(self._path, f"{text} ({len(strangers)}, one is {min(strangers)!r})")

    def _check_index(self, kept: SegmentIndex | None) -> None:
        path = index_path(self._path)
        if kept is None:
            self._report.add(path, "is damaged or of another segment; remove it, and the next start makes it again")
        elif not _same(kept, self.index):
            self._report.add(path, "does not say what its segment holds; remove it, and the next start makes it again")


def _same(one: SegmentIndex, other: SegmentIndex) -> bool:
    """Whether two indices say the same; moments may have been summed up on another machine."""
    plain = ("sharding", "batches", "prompts", "correct", "visits")
    scale = float(np.abs(other.moments.scatter).max(initial=0.0))
    return (
        all(getattr(one, name) == getattr(other, name) for name in plain)
        and one.moments.count == other.moments.count
        and one.moments.scatter.shape == other.moments.scatter.shape
        and np.allclose(one.moments.mean, other.moments.mean, rtol=1e-6)
        and np.allclose(one.moments.scatter, other.moments.scatter, rtol=1e-6, atol=1e-9 * scale)
    )


def _read_snapshots(memory: StoredMemory, report: Verification) -> dict[Path, Snapshot]:
    found = {}
    for path in memory.manifests():
        try:
            found[path] = read_snapshot(path)
        except MemoryCorruptionError as error:
            if path.exists():  # else the run has just removed it with its checkpoint
                report.findings.append(Finding(str(error)))
    return found


def _needed_snapshots(memory: StoredMemory) -> set[str] | None:
    """Names of the snapshots that whole checkpoints name; None, for all, where no run's checkpoints are known."""
    if memory.run is None or not memory.run.complete.is_dir():
        return None
    return {BRANCH_SNAPSHOT, *(marker.name for marker in memory.run.complete.iterdir())}


def _check_snapshot(
    memory: StoredMemory,
    path: Path,
    snapshot: Snapshot,
    indices: dict[str, SegmentIndex],
    needed: bool,
    report: Verification,
) -> None:
    aside = "" if needed else "; no whole checkpoint names this snapshot"
    if (snapshot.format.layers, snapshot.format.model) != (memory.format.layers, memory.format.model):
        report.add(path, f"is of another model than format.json{aside}", needed)
    if len({state.name for state in snapshot.segments}) < len(snapshot.segments):
        report.add(path, f"names a segment twice{aside}", needed)
    for state in snapshot.segments:
        wrong = mismatch(state, indices.get(state.name))
        if wrong:
            report.add(path, f"does not fit {state.name}, {wrong}{aside}", needed)


def mismatch(state: SegmentState, index: SegmentIndex | None) -> str | None:
    """In words, why a segment is not what a snapshot says of it; None where it is."""
    if index is None:
        return "which is missing or cannot be read"
    if index.sharding.shards != state.shards:
        return f"which was written by one of {index.sharding.shards} shards, not of {state.shards}"
    if index.batches_until(state) is not None:
        return None
    ends = [entry.end for entry in index.batches]
    if state.bytes not in ends:
        return f"of which no sound batch ends at byte {state.bytes}"
    number = ends.index(state.bytes) + 1
    if index.batches[number - 1].running_crc32 != state.crc32:
        return f"whose checksum up to byte {state.bytes} differs"
    rows = sum(entry.rows for entry in index.batches[:number])
    return f"which has {rows} rows in {number} batches up to there, not {state.rows} in {state.batches}"


def _check_unique(rows: list[_Rows], report: Verification) -> None:
    """No rollout of a step is stored twice, in whichever segments."""
    if not rows:
        return
    keys = np.concatenate([one.keys for one in rows])
    owner = np.repeat(np.arange(len(rows)), [len(one.keys) for one in rows])
    order = np.argsort(keys, kind="stable")
    again = order[1:][keys[order][1:] == keys[order][:-1]]
    for number in np.unique(owner[again]).tolist():
        repeated = keys[again[owner[again] == number]]
        step, sample = int(repeated[0]) >> 32, int(repeated[0]) & 0xFFFFFFFF
        text = f"{len(repeated)} rows are stored already (one is step {step}, sample {sample})"
        report.add(rows[number].path, text)
