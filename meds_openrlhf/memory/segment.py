"""One file of the log: an Arrow IPC stream whose batches each carry a step and a checksum (docs/storage.md).

If a reader finds content that differs from what was written, it raises an error that names the file. The exception is a
torn batch after the last whole batch, which remains if a process dies during a write.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.files import write_atomically
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.paths import name_in_memory

MESSAGE_MARK = b"\xff\xff\xff\xff"
ALIGNMENT = 8


@dataclass(frozen=True)
class Sharding:
    """The owner of a segment's prompts: shard number ``shard`` of ``shards``."""

    shard: int
    shards: int

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the segment's schema."""
        return {"shard": str(self.shard), "shards": str(self.shards)}

    @staticmethod
    def of(schema: pa.Schema, path: Path) -> Sharding:
        """Read the sharding from a segment's schema. Raises MemoryCorruptionError if it is missing."""
        try:
            return Sharding(int(schema.metadata[b"shard"]), int(schema.metadata[b"shards"]))
        except (TypeError, KeyError, ValueError) as error:
            raise MemoryCorruptionError(f"{path}: does not say whose prompts it holds ({error!r})") from error


@dataclass(frozen=True)
class SegmentState:
    """The state of a segment at some time, sufficient to cut it back to that state and to verify its content.

    ``name`` is its path below the memory's folder, such as ``shard-0003/000007.arrow``; ``shards`` is the number of
    shards at the time of writing; ``crc32`` is the checksum of its first ``bytes`` bytes.
    """

    name: str
    shards: int
    bytes: int = 0
    rows: int = 0
    batches: int = 0
    crc32: int = 0

    @property
    def shard(self) -> int:
        """The number of the shard that wrote it."""
        return int(self.name.split("/")[0].removeprefix("shard-"))

    def after(self, content: memoryview, rows: int) -> SegmentState:
        """Return the state after another batch with ``rows`` rows and the bytes ``content``."""
        return replace(
            self,
            bytes=self.bytes + len(content),
            rows=self.rows + rows,
            batches=self.batches + 1,
            crc32=zlib.crc32(content, self.crc32),
        )


def step_of(batch: pa.RecordBatch) -> int:
    """Return the training step of a batch of the log."""
    step: int = batch.column("step")[0].as_py()
    return step


def encode_batch(batch: pa.RecordBatch, schema: pa.Schema, first: bool) -> bytes:
    """Return the bytes that a batch adds to a segment; those of the ``first`` batch include the ``schema``."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema)
    metadata = {"step": str(step_of(batch)), "crc32": str(_checksum(batch))}
    writer.write_batch(batch.replace_schema_metadata(None), custom_metadata=metadata)
    content = memoryview(sink.getvalue())
    return bytes(content if first else content[len(schema.serialize()) :])


def read_batches(path: Path, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, SegmentState]]:
    """Yield every whole, verified batch of a segment together with the segment's state after it.

    The batches are views of the mapped file. Stops at a torn tail. Raises MemoryCorruptionError if the columns differ
    from ``schema``, or if bytes that are not a valid batch precede a valid one.
    """
    content = _map_file(path)
    source = pa.BufferReader(content)
    state, begin = SegmentState(name_in_memory(path), 0), 0  # begin: start of the last message read as a batch
    try:
        reader = pa.ipc.open_stream(source)
        if not reader.schema.equals(schema):
            raise MemoryCorruptionError(f"{path}: holds other columns than this memory's; is it another model's?")
        state = replace(state, shards=Sharding.of(reader.schema, path).shards)
        message = source.tell()
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            _require_sound(batch, dict(metadata or {}))
            state = state.after(memoryview(content)[state.bytes : source.tell()], len(batch))
            begin, message = message, state.bytes
            yield batch, state
    except (StopIteration, pa.ArrowException, OSError, EOFError) as error:
        # Search from the start of the last valid batch: a damaged length may extend a batch into the next one.
        if _batch_follows(content, begin, schema):
            raise MemoryCorruptionError(
                f"{path}: batch {state.batches}, after byte {state.bytes}, is damaged ({error}); "
                "restore it from a backup"
            ) from None


def read_sharding(path: Path) -> Sharding | None:
    """Return the owner of a segment's prompts, or None if the writer died before it wrote the schema."""
    try:
        return Sharding.of(pa.ipc.open_stream(pa.BufferReader(_map_file(path))).schema, path)
    except (pa.ArrowException, OSError, EOFError):
        return None


def require_unchanged(path: Path, state: SegmentState) -> None:
    """Raise MemoryCorruptionError unless a file begins with exactly the bytes that ``state`` describes."""
    if not begins_with(path, state):
        raise MemoryCorruptionError(f"{path}: is not what its snapshot says; restore it from a backup")


def begins_with(path: Path, state: SegmentState) -> bool:
    """Return whether a file begins with exactly the bytes that ``state`` describes."""
    content = memoryview(_map_file(path))[: state.bytes]
    return len(content) == state.bytes and zlib.crc32(content) == state.crc32


def cut_file(path: Path, length: int) -> None:
    """Cut a segment back to ``length`` bytes, or remove it if ``length`` is 0.

    The file is replaced, not modified: a tool may be reading it, and earlier versions created branches as hard links.
    """
    if length == 0:
        path.unlink(missing_ok=True)
    elif length < path.stat().st_size:
        copy_beginning(path, path, length)


def copy_beginning(source: Path, target: Path, length: int) -> None:
    """Durably replace ``target`` with the first ``length`` bytes of ``source``, which may be the same path."""
    with source.open("rb") as file:
        write_atomically(target, file.read(length))


def _map_file(path: Path) -> pa.Buffer:
    """Map a file into memory; empty for an empty file. Raises MemoryCorruptionError if the file is unreadable."""
    try:
        with path.open("rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0
            return pa.py_buffer(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise MemoryCorruptionError(f"{path}: cannot be read ({error.strerror or error})") from error


def _checksum(batch: pa.RecordBatch) -> int:
    """Return the CRC-32 of the batch's IPC form without metadata, so that a reader can compute it from the batch.

    Raises ArrowInvalid for a batch that the log never writes, since a batch read from damaged bytes may be unsafe to
    use.
    """
    if batch.num_rows == 0:
        raise pa.ArrowInvalid("it holds no rows")
    batch.validate(full=True)
    for field, column in zip(batch.schema, batch.columns):
        if column.null_count and not field.nullable:
            raise pa.ArrowInvalid(f"column {field.name} holds nulls")
    return zlib.crc32(batch.serialize())


def _require_sound(batch: pa.RecordBatch, metadata: dict[bytes, bytes]) -> None:
    """Raise ArrowInvalid unless a batch matches its metadata."""
    if metadata.get(b"crc32") != str(_checksum(batch)).encode() or not metadata.get(b"step", b"").isdigit():
        raise pa.ArrowInvalid("it does not match its checksum")
    if (batch.column("step").to_numpy() != int(metadata[b"step"])).any():
        raise pa.ArrowInvalid("its step is not that of its rows")


def _batch_follows(content: pa.Buffer, position: int, schema: pa.Schema) -> bool:
    """Return whether a whole batch follows ``position``; if so, unreadable bytes are damage, not a torn tail."""
    data = content.slice(position)
    text = data.to_pybytes()
    place = text.find(MESSAGE_MARK, 1)
    while place >= 0:
        if place % ALIGNMENT == 0 and _is_batch(data.slice(place), schema):
            return True
        place = text.find(MESSAGE_MARK, place + 1)
    return False


def _is_batch(data: pa.Buffer, schema: pa.Schema) -> bool:
    """Return whether ``data`` begins with a batch that matches its checksum."""
    try:
        source = pa.BufferReader(data)
        if pa.ipc.read_message(source).type != "record batch":
            return False
        stream = schema.serialize().to_pybytes() + data.slice(0, source.tell()).to_pybytes()
        batch, metadata = pa.ipc.open_stream(stream).read_next_batch_with_custom_metadata()
        return metadata is not None and metadata.get(b"crc32") == str(_checksum(batch)).encode()
    except (pa.ArrowException, OSError, EOFError):
        return False
