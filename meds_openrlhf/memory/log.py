"""The append-only log of one shard: Arrow IPC streams, one record batch per step, durable before `append` returns.

A writer never adds to a segment that an earlier writer left: it begins a new one. Each batch carries its step and a
checksum of its columns, each segment's running checksum goes into the snapshots. docs/storage.md is the specification.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.paths import SEGMENT_NAME, segment_name, sync_folder

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class SegmentState:
    """How far a segment had been written: enough to cut it back to there and to prove that it is unchanged."""

    name: str
    bytes: int
    rows: int
    batches: int
    crc32: int


@dataclass
class _OpenSegment:
    """The segment being written; the pyarrow writer fills ``pending``, which goes to the file in one piece."""

    path: Path
    descriptor: int
    pending: _Buffer
    writer: pa.RecordBatchStreamWriter
    state: SegmentState


class _Buffer:
    """A file-like object that collects what pyarrow writes, so that a batch reaches the file whole or not at all."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to close."""


class SegmentLog:
    """One shard's segments in ``folder``. One writer at a time; readers need pyarrow alone."""

    def __init__(
        self, folder: Path, schema: pa.Schema, *, fsync: bool = True, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._fsync = fsync
        self._segment_bytes = segment_bytes
        self._closed: list[SegmentState] = []
        self._open: _OpenSegment | None = None

    @property
    def segments(self) -> list[SegmentState]:
        """The state of every segment, oldest first."""
        return [*self._closed, *([self._open.state] if self._open else [])]

    def load(self) -> Iterator[pa.RecordBatch]:
        """Read every whole batch, oldest first, and leave the log ready to append to.

        A torn tail (the process died while it wrote) is cut off with a warning. Raises MemoryCorruptionError where a
        batch does not match its checksum.
        """
        self.close()
        self._closed = []
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._paths():
            state = SegmentState(path.name, 0, 0, 0, 0)
            for batch, reached in read_segment(path, self._schema):
                state = reached
                yield batch
            _cut(path, state.bytes)
            if state.bytes:
                self._closed.append(state)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Every whole batch, oldest first, changing nothing."""
        for path in self._paths():
            for batch, _ in read_segment(path, self._schema):
                yield batch

    def append(self, batch: pa.RecordBatch, step: int) -> None:
        """Add one batch; when this returns it is on the disk (with ``fsync``). On an error nothing of it remains."""
        segment = self._writable()
        segment.writer.write_batch(batch, custom_metadata={"step": str(step), "crc32": str(_checksum(batch))})
        content = segment.pending.take()
        try:
            _write_all(segment.descriptor, content)
            if self._fsync:
                os.fsync(segment.descriptor)
        except OSError as error:
            self._discard(segment)
            raise OSError(
                error.errno, f"{segment.path}: step {step} could not be written ({error.strerror}); nothing was stored"
            ) from error
        before = segment.state
        segment.state = SegmentState(
            name=before.name,
            bytes=before.bytes + len(content),
            rows=before.rows + len(batch),
            batches=before.batches + 1,
            crc32=zlib.crc32(content, before.crc32),
        )

    def truncate(self, states: list[SegmentState]) -> None:
        """Cut the log back to ``states``, of an earlier moment of this log; whatever came after is gone.

        Raises MemoryCorruptionError, before anything is cut, where a file is shorter than its state or differs from it.
        """
        self.close()
        for state in states:
            verify_segment(self._folder / state.name, state)
        kept = {state.name: state for state in states}
        for path in self._paths():
            if path.name in kept:
                _cut(path, kept[path.name].bytes)
            else:
                path.unlink()
        if self._folder.exists():
            sync_folder(self._folder)
        self._closed = list(states)

    def sync(self) -> None:
        """Make everything written so far durable, also where single batches are not synced."""
        for state in self.segments:
            with (self._folder / state.name).open("rb") as file:
                os.fsync(file.fileno())

    def close(self) -> None:
        """Stop writing to the current segment; the next batch begins a new one."""
        if self._open is not None:
            os.close(self._open.descriptor)
            if self._open.state.batches:
                self._closed.append(self._open.state)
            else:
                self._open.path.unlink(missing_ok=True)
            self._open = None

    def _paths(self) -> list[Path]:
        if not self._folder.exists():
            return []
        return sorted(path for path in self._folder.iterdir() if SEGMENT_NAME.fullmatch(path.name))

    def _writable(self) -> _OpenSegment:
        if self._open is not None and self._open.state.bytes >= self._segment_bytes:
            self.close()
        if self._open is None:
            self._open = self._begin_segment()
        return self._open

    def _begin_segment(self) -> _OpenSegment:
        self._folder.mkdir(parents=True, exist_ok=True)
        existing = self._paths()
        path = self._folder / segment_name(int(existing[-1].stem) + 1 if existing else 0)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        sync_folder(self._folder)
        pending = _Buffer()
        writer = pa.ipc.new_stream(pa.PythonFile(pending, mode="w"), self._schema)
        return _OpenSegment(path, descriptor, pending, writer, SegmentState(path.name, 0, 0, 0, 0))

    def _discard(self, segment: _OpenSegment) -> None:
        """After a failed write: cut what got through, and let the next batch begin a new segment."""
        path, length = segment.path, segment.state.bytes
        self.close()  # first: whatever happens next, nothing is written behind torn bytes
        if path.exists():
            os.truncate(path, length)


def read_segment(path: Path, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, SegmentState]]:
    """Whole batches of one segment, each with the segment's state up to and including it.

    Ends quietly at a torn tail. Raises MemoryCorruptionError for a wrong schema or a batch that fails its checksum.
    """
    content = path.read_bytes()
    source = pa.BufferReader(content)
    end = rows = batches = crc = 0
    try:
        reader = pa.ipc.open_stream(source)
    except (pa.ArrowInvalid, EOFError):
        return  # the writer died before its first batch was whole
    if not reader.schema.equals(schema):
        raise MemoryCorruptionError(f"{path}: holds other columns than this memory's; is it another model's?")
    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
        except (StopIteration, pa.ArrowInvalid, OSError):
            return
        if metadata is None or metadata.get(b"crc32") != str(_checksum(batch)).encode():
            raise MemoryCorruptionError(
                f"{path}: batch {batches} does not match its checksum; restore it from a backup"
            )
        start, end = end, source.tell()
        rows, batches, crc = rows + len(batch), batches + 1, zlib.crc32(content[start:end], crc)
        yield batch, SegmentState(path.name, end, rows, batches, crc)


def verify_segment(path: Path, state: SegmentState) -> None:
    """Raise MemoryCorruptionError unless ``path`` begins with exactly the bytes that ``state`` describes."""
    try:
        with path.open("rb") as file:
            content = file.read(state.bytes)
    except FileNotFoundError:
        raise MemoryCorruptionError(f"{path}: is missing, but a snapshot names it; restore it from a backup") from None
    if len(content) < state.bytes:
        raise MemoryCorruptionError(f"{path}: has {len(content)} bytes, but a snapshot names {state.bytes}")
    if zlib.crc32(content) != state.crc32:
        raise MemoryCorruptionError(f"{path}: does not match its snapshot's checksum; restore it from a backup")


def _checksum(batch: pa.RecordBatch) -> int:
    """crc32 over the batch's IPC form without metadata, so that a reader can compute it from what it read."""
    return zlib.crc32(batch.serialize())


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _cut(path: Path, length: int) -> None:
    """Cut a file back to ``length`` bytes, or remove it if nothing is left."""
    excess = path.stat().st_size - length
    if length == 0:
        path.unlink()
    elif excess > 0:
        os.truncate(path, length)
    if excess > 0:
        logger.warning("%s: cut %d bytes behind its last whole batch", path, excess)
