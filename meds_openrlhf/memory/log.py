"""The append-only log of one shard: a batch of rows per step, durable before `append` returns, read once at the start.

A writer never appends to a segment of an earlier writer; it starts a new segment. docs/storage.md is the specification.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from meds_openrlhf.files import sync_folder
from meds_openrlhf.locks import WAIT_SECONDS, FolderInUseError, lock_folder
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.rows import shard_of
from meds_openrlhf.memory.segment import (
    SegmentState,
    Sharding,
    cut_file,
    encode_batch,
    read_batches,
    read_sharding,
    require_unchanged,
    step_of,
)
from meds_openrlhf.paths import MemoryPaths, name_in_memory, segment_name, segments_in

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"
SEGMENT_BYTES = 64 * 2**20


class ShardLog:
    """The segments with the prompts of one shard: its own, and those written with another number of shards.

    After the number of shards has changed, every shard reads all older segments, keeps the prompts that now belong to
    it, and writes its own segments. ``states`` maps each segment's name to its state. Only one writer may be active.
    """

    def __init__(
        self,
        paths: MemoryPaths,
        sharding: Sharding,
        schema: pa.Schema,
        *,
        fsync: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        lock_seconds: float | None = WAIT_SECONDS,
    ) -> None:
        self._paths = paths
        self._sharding = sharding
        self._schema = schema.with_metadata(sharding.metadata)
        self._fsync = fsync
        self._segment_bytes = segment_bytes
        self._folder = paths.shard(sharding.shard)
        self._lock_seconds = lock_seconds
        self._lock: BinaryIO | None = None
        self._current: tuple[SegmentState, int] | None = None  # the segment being written and its file descriptor
        self.states: dict[str, SegmentState] = {}

    def open(self) -> Iterator[pa.RecordBatch]:
        """Lock the folder and yield this shard's rows, oldest step first; exhaust the iterator before `append`.

        A torn tail (the process died during a write) is cut off with a warning. Raises MemoryBusyError if another
        process writes to the folder, and MemoryCorruptionError if a segment is damaged.
        """
        self._lock_folder()
        self.states = {}
        for path in self._files():
            yield from self._read(path)
        for path in segments_in(self._folder):
            self._cut_torn(path)

    def append(self, batch: pa.RecordBatch) -> None:
        """Append one step's rows; with ``fsync`` they are on disk when this returns.

        Raises OSError if the write fails; in this case no part of the batch remains.
        """
        state, descriptor = self._writable()
        content = encode_batch(batch, self._schema, first=state.batches == 0)
        try:
            _write_all(descriptor, content)
            if self._fsync:
                os.fsync(descriptor)
        except OSError as error:
            kept = "nothing was stored" if self._discard_torn(state) else "and could not be cut back: cut it by hand"
            raise OSError(
                error.errno,
                f"{self._paths.root / state.name}: step {step_of(batch)} could not be written "
                f"({error.strerror}); {kept}",
            ) from error
        state = state.after(memoryview(content), len(batch))
        self._current = state, descriptor
        self.states[state.name] = state

    def rows_of(self, step: int) -> pa.RecordBatch | None:
        """Read this shard's rows of a step from disk; None if there are none."""
        found = [batch for path in self._files() for batch in self._read(path) if step_of(batch) == step]
        return pa.concat_batches(found) if found else None

    def restore(self, states: list[SegmentState], *, disk_of_its_own: bool = False) -> None:
        """Cut the log back to ``states``, the states of all segments at an earlier time; call `open` afterwards.

        Each folder, including folders without a writer, is cut by the shard whose number is that of the folder modulo
        the number of shards. If each node has its own disk, every shard also cuts the segments on its disk that were
        written with another number of shards. Raises MemoryCorruptionError, before cutting anything, if a file is
        missing, shorter than its state or different from it.
        """
        self.close_segment()
        self._lock_folder()
        kept = {state.name: state for state in states}
        files = {
            name_in_memory(path): path
            for number, folder in self._paths.shard_folders().items()
            for path in segments_in(folder)
            if self.is_mine(number) or (disk_of_its_own and self._is_of_another_division(path))
        }
        missing = {name for name, state in kept.items() if self.is_mine(state.shard)} - files.keys()
        if missing:
            path = self._paths.root / min(missing)
            raise MemoryCorruptionError(f"{path}: is missing, but a snapshot names it; restore it from a backup")
        for name in files.keys() & kept.keys():
            require_unchanged(files[name], kept[name])
        for name, path in files.items():
            cut_file(path, kept[name].bytes if name in kept else 0)
        for folder in {path.parent for path in files.values()}:
            sync_folder(folder)

    def sync(self) -> None:
        """Make all written rows durable, even if ``fsync`` is off."""
        for name in self.states:
            with (self._paths.root / name).open("rb") as file:
                os.fsync(file.fileno())

    def close_segment(self) -> None:
        """Close the segment being written; the next batch starts a new segment."""
        if self._current is not None:
            state, descriptor = self._current
            os.close(descriptor)
            self._current = None
            if state.batches == 0:
                (self._paths.root / state.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the segment and release the folder for other processes."""
        self.close_segment()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def is_mine(self, shard_number: int) -> bool:
        """Return whether this shard maintains the folder ``shard_number``, whatever number of shards wrote it."""
        return shard_number % self._sharding.shards == self._sharding.shard

    def _lock_folder(self) -> None:
        """Lock the folder, unless it is locked already."""
        if self._lock is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = lock_folder(self._folder / LOCK_NAME, self._lock_seconds)
            except FolderInUseError as error:
                raise MemoryBusyError(f"{self._folder}: {error}") from error

    # ── reading ──

    def _files(self) -> list[Path]:
        """Return the segments with at least one whole batch that may contain this shard's prompts, ordered by step."""
        steps: dict[Path, int] = {}
        for folder in self._paths.shard_folders().values():
            for path in segments_in(folder):
                if folder == self._folder or self._is_of_another_division(path):
                    batch, _ = next(read_batches(path, self._schema), (None, None))
                    if batch is not None:
                        steps[path] = step_of(batch)
        return sorted(steps, key=lambda path: (steps[path], name_in_memory(path)))

    def _is_of_another_division(self, path: Path) -> bool:
        sharding = read_sharding(path)
        return sharding is not None and sharding.shards != self._sharding.shards

    def _read(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Yield this shard's rows in a segment, batch by batch."""
        for batch, state in read_batches(path, self._schema):
            self.states[state.name] = state
            rows = batch if state.shards == self._sharding.shards else self._own_rows(batch)
            if len(rows):
                yield rows

    def _own_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys, shards = batch.column("prompt").to_pylist(), self._sharding.shards
        return batch.filter(pa.array([shard_of(key, shards) == self._sharding.shard for key in keys]))

    def _cut_torn(self, path: Path) -> None:
        state = self.states.get(name_in_memory(path))
        length = state.bytes if state else 0
        excess = path.stat().st_size - length
        if excess:
            logger.warning("%s: cut %d bytes after its last whole batch", path, excess)
        if excess or length == 0:
            cut_file(path, length)

    # ── writing ──

    def _writable(self) -> tuple[SegmentState, int]:
        if self._current is not None and self._current[0].bytes >= self._segment_bytes:
            self.close_segment()
        if self._current is None:
            self._current = self._begin_segment()
        return self._current

    def _begin_segment(self) -> tuple[SegmentState, int]:
        taken = [int(path.stem) for path in segments_in(self._folder)]
        path = self._folder / segment_name(max(taken, default=-1) + 1)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        sync_folder(self._folder)
        return SegmentState(name_in_memory(path), self._sharding.shards), descriptor

    def _discard_torn(self, state: SegmentState) -> bool:
        """Cut off the bytes of a failed write and close the segment; return whether the cut succeeded."""
        self.close_segment()  # first, so that no later batch is written after torn bytes
        path = self._paths.root / state.name
        try:
            if path.exists():
                cut_file(path, state.bytes)
        except OSError:
            return False
        return True


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
