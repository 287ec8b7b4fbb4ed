"""One segment of the log, as it is read: an Arrow IPC stream whose batches each carry a step and a checksum.

Whatever a reader finds that is not what was written is an error that names the file, but for one thing: behind the last
whole batch there may be a torn one, of a process that died while it wrote.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.memory.errors import MemoryCorruptionError

MESSAGE_MARK = b"\xff\xff\xff\xff"
ALIGNMENT = 8
FLOAT_BYTES = 4
MADV_POPULATE_READ = 22  # Python's mmap has no name for it


@dataclass(frozen=True)
class SegmentState:
    """How far a segment had been written: enough to cut it back to there and to prove that it is unchanged.

    ``name`` is its path below the memory's folder, ``shard-0003/000007.arrow``, ``shards`` among how many the prompts
    were divided when it was written; ``crc32`` is of its first ``bytes``.
    """

    name: str
    shards: int
    bytes: int
    rows: int
    batches: int
    crc32: int

    @property
    def number(self) -> int:
        """The segment's number in its folder."""
        return int(self.name.split("/")[1].removesuffix(".arrow"))

    @property
    def shard(self) -> int:
        """The number of the shard that wrote it."""
        return int(self.name.split("/")[0].removeprefix("shard-"))


@dataclass(frozen=True)
class BatchEntry:
    """Where one batch lies in its segment, in bytes, and what it holds.

    ``crc32`` is of the batch alone, ``running_crc32`` of the file up to ``end``; ``logits`` is where its (rows, N)
    float32 layer logits begin.
    """

    start: int
    end: int
    rows: int
    step: int
    crc32: int
    running_crc32: int
    logits: int


@dataclass(frozen=True)
class Sharding:
    """Whose prompts a segment holds: those of shard number ``shard`` of ``shards``."""

    shard: int
    shards: int

    @property
    def metadata(self) -> dict[str, str]:
        """As it is written into the segment's schema."""
        return {"shard": str(self.shard), "shards": str(self.shards)}

    @staticmethod
    def of(schema: pa.Schema, path: Path) -> Sharding:
        """Read it from a segment's schema. Raises MemoryCorruptionError where it is not there."""
        try:
            return Sharding(int(schema.metadata[b"shard"]), int(schema.metadata[b"shards"]))
        except (TypeError, KeyError, ValueError) as error:
            raise MemoryCorruptionError(f"{path}: does not say whose prompts it holds ({error!r})") from error


def checksum(batch: pa.RecordBatch) -> int:
    """crc32 over the batch's IPC form without metadata, so that a reader can compute it from what it read.

    Raises ArrowInvalid for a batch that is none (what damaged bytes read as may not even be walked through safely).
    """
    if batch.num_rows == 0:
        raise pa.ArrowInvalid("it holds no rows")
    batch.validate(full=True)
    for field, column in zip(batch.schema, batch.columns):
        if column.null_count and not field.nullable:
            raise pa.ArrowInvalid(f"column {field.name} holds nulls")
    return zlib.crc32(batch.serialize())


def encode_batch(batch: pa.RecordBatch, step: int, schema: pa.Schema, first: bool) -> tuple[bytes, int]:
    """The bytes that a batch adds to a segment, those of the ``first`` one beginning with the schema; its checksum."""
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema)
    crc = checksum(batch)
    metadata = {"step": str(step), "crc32": str(crc)}
    writer.write_batch(batch.replace_schema_metadata(None), custom_metadata=metadata)
    content = memoryview(sink.getvalue())
    return bytes(content if first else content[len(schema.serialize()) :]), crc


def read_batches(
    path: Path, schema: pa.Schema, limit: int | None = None
) -> Iterator[tuple[pa.RecordBatch, BatchEntry]]:
    """Every whole batch of a segment, or of its first ``limit`` bytes, its checksum compared.

    Ends at a torn tail. Raises MemoryCorruptionError for another schema, and for bytes that are no batch, or one that
    fails its checksum, though a batch comes after them.
    """
    content = map_file(path)
    content = content if limit is None else content.slice(0, min(limit, len(content)))
    source = pa.BufferReader(content)
    end = batches = running = begin = 0  # begin: of the last message that read as a batch
    try:
        reader = pa.ipc.open_stream(source)
        require_schema(reader.schema, schema, path)
        message = source.tell()
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            entry = _entry(content, batch, metadata, end, source.tell(), running)
            end, batches, running = entry.end, batches + 1, entry.running_crc32
            begin, message = message, end
            yield batch, entry
    except (StopIteration, pa.ArrowException, OSError, EOFError) as error:
        # From behind its beginning: if its length is what is damaged, it reaches into the next one.
        if _batch_follows(content, begin, schema):
            raise MemoryCorruptionError(
                f"{path}: batch {batches}, behind byte {end}, is damaged ({error}); restore it from a backup"
            ) from None


def read_batch(content: pa.Buffer, entry: BatchEntry, schema: pa.Schema, path: Path) -> pa.RecordBatch:
    """One batch at a known place, its checksum compared. Raises MemoryCorruptionError where it is not the one."""
    try:
        source = pa.BufferReader(content.slice(entry.start, entry.end - entry.start))
        message = pa.ipc.read_message(source)
        if message.type == "schema":  # the first batch comes behind it
            message = pa.ipc.read_message(source)
        batch = pa.ipc.read_record_batch(message, schema)
        if checksum(batch) == entry.crc32:
            return batch
        reason = "its checksum differs"
    except (pa.ArrowException, OSError, EOFError, IndexError) as error:
        reason = str(error)
    raise MemoryCorruptionError(
        f"{path}: the batch of step {entry.step} is damaged ({reason}); restore it from a backup"
    )


def map_file(path: Path, *, populate: bool = False) -> pa.Buffer:
    """The file's bytes, mapped into memory; empty for an empty file. Raises MemoryCorruptionError where it is none.

    ``populate``: all at once, in place of a page fault for each page that is touched.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return pa.py_buffer(b"")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise MemoryCorruptionError(f"{path}: cannot be read ({error.strerror or error})") from error
    if populate:
        with contextlib.suppress(OSError):  # Linux before 5.14
            mapped.madvise(MADV_POPULATE_READ)
    return pa.py_buffer(mapped)


def read_schema(path: Path) -> pa.Schema | None:
    """The schema that a segment begins with; None where its writer died before that was whole."""
    try:
        return pa.ipc.open_stream(pa.BufferReader(map_file(path))).schema
    except (pa.ArrowException, OSError, EOFError):
        return None


def require_schema(found: pa.Schema, expected: pa.Schema, path: Path) -> None:
    """Raise MemoryCorruptionError unless a segment has the columns of this memory."""
    if not found.equals(expected):
        raise MemoryCorruptionError(f"{path}: holds other columns than this memory's; is it another model's?")


def _entry(
    content: pa.Buffer, batch: pa.RecordBatch, metadata: object, start: int, end: int, running: int
) -> BatchEntry:
    stored = dict(metadata) if metadata is not None else {}  # type: ignore[call-overload]
    crc = checksum(batch)
    if stored.get(b"crc32") != str(crc).encode() or not stored.get(b"step", b"").isdigit():
        raise pa.ArrowInvalid("it does not match its checksum")
    if (batch.column("step").to_numpy() != int(stored[b"step"])).any():
        raise pa.ArrowInvalid("its step is not that of its rows")
    logits = logits_address(batch) - content.address
    size = len(batch) * batch.schema.field("layer_logits").type.list_size * FLOAT_BYTES
    if logits % FLOAT_BYTES or not start <= logits <= end - size:
        raise pa.ArrowInvalid("its logits are compressed, or not laid out as the log writes them")
    return BatchEntry(
        start=start,
        end=end,
        rows=len(batch),
        step=int(stored[b"step"]),
        crc32=crc,
        running_crc32=zlib.crc32(memoryview(content)[start:end], running),
        logits=logits,
    )


def logits_address(batch: pa.RecordBatch) -> int:
    """The address in memory of a batch's first layer logit."""
    address: int = batch.column("layer_logits").values.buffers()[1].address
    return address


def _batch_follows(content: pa.Buffer, position: int, schema: pa.Schema) -> bool:
    """Whether a whole batch lies anywhere behind ``position``: then what does not read is damage, not a torn tail."""
    data = content.slice(position)
    text = data.to_pybytes()
    place = text.find(MESSAGE_MARK, 1)
    while place >= 0:
        if place % ALIGNMENT == 0 and _is_batch(data.slice(place), schema):
            return True
        place = text.find(MESSAGE_MARK, place + 1)
    return False


def _is_batch(data: pa.Buffer, schema: pa.Schema) -> bool:
    """Whether ``data`` begins with a batch that matches its checksum."""
    try:
        source = pa.BufferReader(data)
        if pa.ipc.read_message(source).type != "record batch":
            return False
        stream = schema.serialize().to_pybytes() + data.slice(0, source.tell()).to_pybytes()
        batch, metadata = pa.ipc.open_stream(stream).read_next_batch_with_custom_metadata()
        return metadata is not None and metadata.get(b"crc32") == str(checksum(batch)).encode()
    except (pa.ArrowException, OSError, EOFError):
        return False
