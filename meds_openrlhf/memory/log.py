"""The append-only log of one shard: a batch of rows per step, durable before `append` returns, read once at the start.

A writer never adds to a segment that an earlier writer left: it begins a new one. docs/storage.md is the specification.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.files import sync_folder
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.folder_lock import FolderLock
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

SEGMENT_BYTES = 64 * 2**20


class ShardLog:
    """The segments that hold the prompts of one shard: those that it wrote, and those of another division.

    After the number of shards has changed, every shard reads all older segments and keeps the prompts that are its own
    now; it writes segments of its own. ``states``, by name, says how far each segment goes. One writer at a time.
    """

    def __init__(
        self,
        paths: MemoryPaths,
        sharding: Sharding,
        schema: pa.Schema,
        *,
        fsync: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._paths = paths
        self._sharding = sharding
        self._schema = schema.with_metadata(sharding.metadata)
        self._fsync = fsync
        self._segment_bytes = segment_bytes
        self._folder = paths.shard(sharding.shard)
        self._lock = FolderLock(self._folder)
        self._current: tuple[SegmentState, int] | None = None  # the segment being written, and its descriptor
        self.states: dict[str, SegmentState] = {}

    def open(self) -> Iterator[pa.RecordBatch]:
        """Take the folder and read this shard's rows, oldest step first; to be read to the end before `append`.

        A torn tail (the process died while it wrote) is cut off with a warning. Raises MemoryBusyError if another
        process writes here, MemoryCorruptionError if a segment is damaged.
        """
        self.close()
        self._lock.acquire()
        self.states = {}
        for path in self._files():
            yield from self._read(path)
            if path.parent == self._folder:
                self._cut_torn(path)

    def append(self, batch: pa.RecordBatch) -> None:
        """Add one step's rows; when this returns they are on the disk (with ``fsync``).

        Raises OSError if the disk refuses; nothing of the batch remains then.
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
        """This shard's rows of a step, read again from the disk; None if it has none."""
        found = [batch for path in self._files() for batch in self._read(path) if step_of(batch) == step]
        return pa.concat_batches(found) if found else None

    def restore(self, states: list[SegmentState], *, disk_of_its_own: bool = False) -> None:
        """Cut the log back to ``states``, those of all segments at an earlier moment; whatever came after is gone.

        A folder is cut by one shard, also if nobody writes there any more: the one whose number is that of the folder
        modulo the number of shards. If each node has a disk of its own, every shard cuts the segments of another
        division that its disk has. Raises MemoryCorruptionError, before anything is cut, if a file is shorter than its
        state or differs from it.
        """
        self.close()
        self._lock.acquire()
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
        """Make everything written so far durable, also if single batches are not synced."""
        for name in self.states:
            with (self._paths.root / name).open("rb") as file:
                os.fsync(file.fileno())

    def close_segment(self) -> None:
        """End the segment being written; the next batch begins a new one."""
        if self._current is not None:
            state, descriptor = self._current
            os.close(descriptor)
            self._current = None
            if state.batches == 0:
                (self._paths.root / state.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process have the folder."""
        self.close_segment()
        self._lock.release()

    def is_mine(self, shard_number: int) -> bool:
        """Whether the folder of a shard, of whatever division, is this one's to keep in order."""
        return shard_number % self._sharding.shards == self._sharding.shard

    # ── reading ──

    def _files(self) -> list[Path]:
        """The segments with a whole batch that hold prompts of this shard, in the order of their steps."""
        steps: dict[Path, int] = {}
        for folder in self._paths.shard_folders().values():
            for path in segments_in(folder):
                if folder == self._folder or self._is_of_another_division(path):
                    batch, _ = next(read_batches(path, self._schema), (None, None))
                    if batch is not None:
                        steps[path] = step_of(batch)
                    elif folder == self._folder:
                        self._cut_torn(path)
        return sorted(steps, key=lambda path: (steps[path], name_in_memory(path)))

    def _is_of_another_division(self, path: Path) -> bool:
        sharding = read_sharding(path)
        return sharding is not None and sharding.shards != self._sharding.shards

    def _read(self, path: Path) -> Iterator[pa.RecordBatch]:
        """This shard's rows in a segment, batch by batch."""
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
        """After a failed write: cut what got through, and let the next batch begin a new segment. Whether it is cut."""
        self.close_segment()  # first: whatever happens next, nothing is written after torn bytes
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
