"""The append-only log of one shard: segments of Arrow record batches, one per step, durable before `append` returns.

A writer never adds to a segment that an earlier writer left: it begins a new one. docs/storage.md is the specification.
"""

from __future__ import annotations

import logging
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.memory.errors import MemoryCorruptionError, MemoryLostError
from meds_openrlhf.memory.folder_lock import FolderLock
from meds_openrlhf.memory.segment import (
    BatchEntry,
    SegmentState,
    Sharding,
    encode_batch,
    logits_address,
    map_file,
    read_schema,
    require_schema,
)
from meds_openrlhf.memory.segment_index import SegmentIndex, index_path, read_index, scan_segment, write_index
from meds_openrlhf.memory.snapshot import read_states, write_states
from meds_openrlhf.memory.stored_segment import StoredSegment, Visits
from meds_openrlhf.paths import MemoryPaths, name_in_memory, segment_name, segments_in, sync_folder, write_atomically

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 64 * 2**20
EARLIER_NAME = "earlier.json"  # in a shard's folder: segments of an earlier division that hold its prompts


@dataclass
class _Writer:
    """The segment being written."""

    segment: StoredSegment
    descriptor: int


class SegmentLog:
    """The segments that hold the prompts of one shard: its own, and those of shards of an earlier division.

    One writer at a time; readers need pyarrow alone.
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
        self._writer: _Writer | None = None
        self.segments: list[StoredSegment] = []

    @property
    def states(self) -> list[SegmentState]:
        """The state of every segment that holds a batch."""
        return [segment.state for segment in self.segments if segment.index.batches]

    def open(self) -> None:
        """Take the folder and find out what it holds, ready to append.

        A torn tail (the process died while it wrote) is cut off with a warning. Raises MemoryBusyError where another
        process writes here, MemoryCorruptionError where a segment is damaged, or where the prompts were divided among
        another number of shards when it was written, and no `restore` has said what belongs to this one.
        """
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        earlier = self._read_earlier()
        known = {self._paths.root / state.name for state in earlier}
        own = [self._opened(path) for path in segments_in(self._folder) if path not in known]
        self.segments = sorted(
            [*(segment for segment in own if segment is not None), *map(self._earlier_segment, earlier)],
            key=lambda segment: (segment.index.batches[0].step, segment.name),
        )

    def append(self, batch: pa.RecordBatch, step: int) -> Visits:
        """Add one batch to the last of `segments`; when this returns it is on the disk (with ``fsync``).

        Raises OSError where the disk refuses; nothing of the batch remains then.
        """
        writer = self._writable()
        segment, index = writer.segment, writer.segment.index
        content, crc = encode_batch(batch, step, self._schema, first=not index.batches)
        try:
            _write_all(writer.descriptor, content)
            if self._fsync:
                os.fsync(writer.descriptor)
        except OSError as error:
            kept = "nothing was stored" if self._discard_torn(segment) else "and could not be cut back: cut it by hand"
            raise OSError(
                error.errno, f"{segment.path}: step {step} could not be written ({error.strerror}); {kept}"
            ) from error
        return segment.append(batch, self._entry(content, crc, index, batch, step))

    def restore(self, states: list[SegmentState], folders: set[int]) -> None:
        """Cut the log back to ``states``, those of all segments of an earlier moment; whatever came after is gone.

        Of the folders of shards, only ``folders`` are this one's to cut. Raises MemoryCorruptionError, before anything
        is cut, where a file is shorter than its state or differs from it.

        Segments of another division of the prompts are read from wherever they are; which ones is written down.
        """
        self.close()
        self._lock.acquire()
        kept = {state.name: state for state in states}
        own = [self._paths.shard(number) for number in folders]
        present = {name_in_memory(path): path for folder in own for path in segments_in(folder)}
        missing = {state.name for state in states if state.shard in folders} - present.keys()
        if missing:
            name = self._paths.root / min(missing)
            raise MemoryCorruptionError(f"{name}: is missing, but a snapshot names it; restore it from a backup")
        lengths = [(path, self._verified_length(path, kept.get(name))) for name, path in present.items()]
        for path, length in lengths:
            cut_file(path, length)
        for folder in own:
            if folder.is_dir():
                sync_folder(folder)
        self._write_earlier([state for state in states if state.shards != self._sharding.shards])
        for folder in own:  # of shards that there are none of any more
            if folder != self._folder:
                (folder / EARLIER_NAME).unlink(missing_ok=True)

    def batches_of(self, step: int) -> list[pa.RecordBatch]:
        """Every batch of one step."""
        return [batch for segment in self.segments if segment.last_step >= step for batch in segment.of_step(step)]

    def sync(self) -> None:
        """Make everything written so far durable, also where single batches are not synced."""
        for segment in self.segments:
            with segment.path.open("rb") as file:
                os.fsync(file.fileno())

    def seal(self) -> None:
        """End the segment being written, with its index beside it; the next batch begins a new one."""
        if self._writer is None:
            return
        segment = self._writer.segment
        os.close(self._writer.descriptor)
        self._writer = None
        segment.seal()
        if segment.index.batches:
            _try_write_index(segment)
        else:
            segment.path.unlink(missing_ok=True)
            self.segments.remove(segment)

    def close(self) -> None:
        """Seal, and let another process have the folder."""
        self.seal()
        self._lock.release()

    # ── opening ──

    def _opened(self, path: Path) -> StoredSegment | None:
        """A segment of the own folder; None, and the file removed, where it holds no whole batch."""
        schema = read_schema(path)
        if schema is not None:
            require_schema(schema, self._schema, path)
            self._require_own_division(Sharding.of(schema, path), path)
        index = read_index(path)
        if index is not None:
            return StoredSegment(path, index, self._schema, verified=False)
        index = scan_segment(path, self._schema)
        length = index.bytes if index else 0
        excess = path.stat().st_size - length
        if excess:
            logger.warning("%s: cut %d bytes behind its last whole batch", path, excess)
            cut_file(path, length)
        if index is None or not index.batches:
            path.unlink(missing_ok=True)
            return None
        segment = StoredSegment(path, index, self._schema, verified=True)
        _try_write_index(segment)
        return segment

    def _require_own_division(self, found: Sharding, path: Path) -> None:
        if found.shards != self._sharding.shards:
            raise MemoryCorruptionError(
                f"{path}: was written by shard {found.shard} of {found.shards}, and this is one of "
                f"{self._sharding.shards}; restore a snapshot, which divides the prompts anew"
            )

    # ── segments of an earlier division of the prompts ──

    def _read_earlier(self) -> list[SegmentState]:
        path = self._folder / EARLIER_NAME
        return read_states(path) if path.exists() else []

    def _write_earlier(self, states: list[SegmentState]) -> None:
        path = self._folder / EARLIER_NAME
        if states:
            write_atomically(path, write_states(states))
        else:
            path.unlink(missing_ok=True)

    def _earlier_segment(self, state: SegmentState) -> StoredSegment:
        """The segment as far as ``state`` goes: another shard, whose file it is now, may not have cut it yet."""
        path = self._paths.root / state.name
        try:
            index = read_index(path)
            if index is None or index.bytes != state.bytes:
                index = scan_segment(path, self._schema, state.bytes)
        except FileNotFoundError:
            raise MemoryLostError(f"{path}: cannot be reached from here, and holds rows of this shard") from None
        if index is None or index.batches_until(state) is None:
            raise MemoryCorruptionError(f"{path}: is not what its snapshot says; restore it from a backup")
        return StoredSegment(path, index, self._schema, verified=False)

    # ── writing ──

    def _writable(self) -> _Writer:
        if self._writer is not None and self._writer.segment.index.bytes >= self._segment_bytes:
            self.seal()
        if self._writer is None:
            self._writer = self._begin_segment()
        return self._writer

    def _begin_segment(self) -> _Writer:
        taken = [int(path.stem) for path in segments_in(self._folder)]
        taken += [state.number for state in self._read_earlier() if state.shard == self._sharding.shard]
        path = self._folder / segment_name(max(taken, default=-1) + 1)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        sync_folder(self._folder)
        segment = StoredSegment(path, SegmentIndex(self._sharding), self._schema, verified=True, sealed=False)
        self.segments.append(segment)
        return _Writer(segment, descriptor)

    def _entry(self, content: bytes, crc: int, index: SegmentIndex, batch: pa.RecordBatch, step: int) -> BatchEntry:
        """Where the batch just written lies."""
        start = index.bytes
        buffer = pa.py_buffer(content)
        skip = 0 if index.batches else len(self._schema.serialize())
        written = pa.ipc.read_record_batch(pa.ipc.read_message(buffer.slice(skip)), self._schema)
        return BatchEntry(
            start=start,
            end=start + len(content),
            rows=len(batch),
            step=step,
            crc32=crc,
            running_crc32=zlib.crc32(content, index.batches[-1].running_crc32 if index.batches else 0),
            logits=start + logits_address(written) - buffer.address,
        )

    def _discard_torn(self, segment: StoredSegment) -> bool:
        """After a failed write: cut what got through, and let the next batch begin a new segment. Whether it is cut."""
        path, length = segment.path, segment.index.bytes
        self.seal()  # first: whatever happens next, nothing is written behind torn bytes
        try:
            if path.exists():
                cut_file(path, length)
        except OSError:
            return False
        return True

    # ── cutting ──

    def _verified_length(self, path: Path, state: SegmentState | None) -> int:
        """How many bytes of a segment a snapshot keeps, once they are proven to be the same."""
        if state is None:
            return 0
        index = read_index(path)
        if index is not None and index.batches_until(state) is not None:
            return state.bytes
        if not begins_with(path, state):
            raise MemoryCorruptionError(f"{path}: is not what its snapshot says; restore it from a backup")
        return state.bytes


def begins_with(path: Path, state: SegmentState) -> bool:
    """Whether a file begins with exactly the bytes that a snapshot names."""
    content = memoryview(map_file(path))[: state.bytes]
    return len(content) == state.bytes and zlib.crc32(content) == state.crc32


def cut_file(path: Path, length: int) -> None:
    """Cut a segment back to ``length`` bytes, or remove it if nothing is left; its index goes with what is cut.

    The file is replaced, not changed: another run may share it by a hard link, and a tool may be reading it.
    """
    size = path.stat().st_size
    if length == size and length > 0:
        return
    index_path(path).unlink(missing_ok=True)
    if length == 0:
        path.unlink()
        return
    temporary = path.with_name(f".{path.name}.tmp")
    with path.open("rb") as source, temporary.open("wb") as target:
        shutil.copyfileobj(source, target)
        target.truncate(length)
        target.flush()
        os.fsync(target.fileno())
    os.replace(temporary, path)


def _try_write_index(segment: StoredSegment) -> None:
    """An index that cannot be written (a full disk) is made again by the next process to open the segment."""
    try:
        write_index(segment.path, segment.index)
    except OSError as error:
        logger.warning("%s: its index could not be written (%s)", segment.path, error.strerror)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
