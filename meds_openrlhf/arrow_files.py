"""Arrow files of ours and of others: bounded before they are decompressed, validated in full after they are read.

Arrow itself trusts lengths and offsets in a file, so that one which lies shows other memory of the process, or ends it.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from meds_openrlhf.files import MOST_UNPACKED, UnusableFileError, require_unpacked

_FILE = b"ARROW1"  # begins and ends the file format, in which a stream begins at byte 8
_CHECKSUM = re.compile(rb"crc32=([0-9a-f]{8})")
CHECKSUM = "checksum"  # in the schema's metadata, near the start of the file
NO_CHECKSUM = b"crc32=00000000"  # placeholder while the checksum of a file is computed
ROWS_AT_ONCE, ROW_BYTES = 256, 200  # of Parquet: rows of a portion, and the least that counts as a row in memory
# What Arrow raises for a file that is damaged: its own errors, of which some are also KeyError, IndexError or OSError.
_DAMAGE = (pa.ArrowException, OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError, struct.error)


class DamagedArrowError(ValueError):
    """The bytes are not a valid Arrow file, or not one with the wanted columns."""


def with_checksum(content: bytes) -> bytes:
    """Put the CRC-32 of the whole content in place of its first `NO_CHECKSUM`."""
    return content.replace(NO_CHECKSUM, b"crc32=%08x" % zlib.crc32(content), 1)


def matches_checksum(content: bytes) -> bool:
    """Whether the first checksum in ``content`` is that of the content with `NO_CHECKSUM` in its place."""
    found, view = _CHECKSUM.search(content), memoryview(content)
    before = zlib.crc32(NO_CHECKSUM, zlib.crc32(view[: found.start()])) if found else 0
    return found is not None and zlib.crc32(view[found.end() :], before) == int(found[1], 16)


def read_batches(
    path: Path, content: bytes, columns: Sequence[str] | None = None
) -> list[tuple[pa.RecordBatch, dict[bytes, bytes]]]:
    """Read the batches of an Arrow IPC file or stream with their metadata, ``columns`` alone if given, validated.

    Raises DamagedArrowError, and UnusableFileError if it would take too many times its size in memory, also as Python's
    values.
    """
    stream = _stream_in(content)
    with _as_damage():
        unpacked = sum(map(_unpacked_bytes, _messages(stream)))
    require_unpacked(path, len(content), unpacked)
    with _as_damage():
        reader = pa.ipc.open_stream(stream)
        if columns is not None:
            options = pa.ipc.IpcReadOptions(included_fields=_fields(reader.schema, columns))
            reader = pa.ipc.open_stream(stream, options=options)
        batches, decoded = [], 0
        for batch, metadata in reader.iter_batches_with_custom_metadata():
            batch.validate(full=True)
            decoded += decoded_bytes(batch)
            require_unpacked(path, len(content), decoded)
            batches.append((batch, dict(metadata or {})))
    return batches


def read_arrow(path: Path, content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Read all batches as one table, with the columns in the order of ``columns``; raises like `read_batches`."""
    batches = [batch for batch, _ in read_batches(path, content, columns)]
    with _as_damage():
        schema = batches[0].schema if batches else pa.ipc.open_stream(_stream_in(content)).schema
        table = pa.Table.from_batches(batches, schema)
        return table.select(table.column_names if columns is None else columns)  # whose names have to be texts


def _fields(schema: pa.Schema, columns: Sequence[str]) -> list[int]:
    for name in columns:
        if len(schema.get_all_field_indices(name)) != 1:
            raise DamagedArrowError(f"it has no column {name}, or several")
    return sorted(schema.get_field_index(name) for name in columns)


def require_schema(found: pa.Schema, wanted: pa.Schema) -> None:
    """Raise DamagedArrowError unless the columns are the wanted ones in order, with types and nullability."""
    if not found.equals(wanted):
        pairs = [(one, other) for one, other in zip(found, wanted) if not one.equals(other)]
        known = pairs and len(found) == len(wanted)
        raise DamagedArrowError(f"it has {pairs[0][0]} in place of {pairs[0][1]}" if known else "it has other columns")


def require_no_nulls(rows: pa.Table) -> None:
    """Raise DamagedArrowError for a null in a column that cannot have any, which Arrow does not validate."""
    for field in rows.schema:
        chunks = rows[field.name].chunks
        nulls = sum(chunk.null_count + getattr(chunk, "dictionary", chunk[:0]).null_count for chunk in chunks)
        if nulls and not field.nullable:
            raise DamagedArrowError(f"the column {field.name} has nulls")


def rows_of_parquet(path: Path, file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the rows of an open Parquet file; few at a time, because one value can stand for many rows.

    Raises DamagedArrowError, and UnusableFileError if the rows would take too many times the file's size in memory, as
    the file's own numbers say before it is decoded.
    """
    from pyarrow.parquet import ParquetFile

    packed, unpacked = os.fstat(file.fileno()).st_size, 0
    with _as_damage(), ParquetFile(file) as parquet:
        groups = [parquet.metadata.row_group(number).total_byte_size for number in range(parquet.num_row_groups)]
        require_unpacked(path, packed, max(groups, default=0))
        for batch in parquet.iter_batches(max(1, min(ROWS_AT_ONCE, MOST_UNPACKED // max((1, *groups))))):
            unpacked += max(decoded_bytes(batch), ROW_BYTES * len(batch))
            require_unpacked(path, packed, unpacked)
            yield from batch.to_pylist()


@contextmanager
def _as_damage() -> Iterator[None]:
    try:
        yield
    except (DamagedArrowError, UnusableFileError):
        raise
    except _DAMAGE as error:
        raise DamagedArrowError(" ".join(str(error).split()) or type(error).__name__) from error


def _stream_in(content: bytes) -> pa.Buffer:
    """The stream of a file or stream, not copied.

    No memoryview: until Python 3.12.7 one that something reads may end the process when it is collected (gh-77894).
    """
    if content[: len(_FILE)] != _FILE:
        return pa.py_buffer(content)
    if len(content) < 2 * len(_FILE) or content[-len(_FILE) :] != _FILE:
        raise DamagedArrowError("it ends too early")
    return pa.py_buffer(content).slice(8)


def _messages(stream: pa.Buffer) -> Iterator[pa.ipc.Message]:
    reader = pa.ipc.MessageReader.open_stream(stream)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _unpacked_bytes(message: pa.ipc.Message) -> int:
    """The bytes of a message's buffers when decompressed: a compressed buffer begins with that number.

    Arrow, which allocates what the number says, shows it nowhere; so it is read as the format's Message.fbs lays it
    out. Arrow has verified that all offsets in the metadata are inside it.
    """
    if message.metadata_version != pa.ipc.MetadataVersion.V5:  # of Arrow before 1.0, compressed in another way
        raise DamagedArrowError("it has the metadata of another version")
    metadata, body = memoryview(message.metadata), message.body
    header = _table(metadata, _field(metadata, _table(metadata, 0), 2))
    if message.type == "dictionary":
        header = _table(metadata, _field(metadata, header, 1))
    elif message.type != "record batch":
        return 0
    at = _field(metadata, header, 2)
    if not at or body is None:
        return 0
    at += _int(metadata, "<I", at)
    places = metadata[at + 4 : at + 4 + 16 * _int(metadata, "<I", at)]
    buffers = [*struct.iter_unpack("<qq", places)]  # whole, for what `_stream_in` says of memoryviews
    if not _field(metadata, header, 3):  # not compressed
        return sum(length for _, length in buffers)
    content = memoryview(body)
    numbers = [(length, _int(content, "<q", offset)) for offset, length in buffers if length]
    if min((number for _, number in numbers), default=0) < -1:
        raise DamagedArrowError("a buffer unpacks to less than nothing")
    return sum(length if number == -1 else number for length, number in numbers)


def _int(buffer: memoryview, form: str, at: int) -> int:
    number: int = struct.unpack_from(form, buffer, at)[0]
    return number


def _table(buffer: memoryview, at: int) -> int:
    """The place of the table to which the offset at ``at`` leads."""
    return at + _int(buffer, "<I", at)


def _field(buffer: memoryview, table: int, number: int) -> int:
    """The place of a table's field, 0 if it is absent."""
    entries = table - _int(buffer, "<i", table)
    place = 4 + 2 * number
    offset = _int(buffer, "<H", entries + place) if place < _int(buffer, "<H", entries) else 0
    return table + offset if offset else 0


def decoded_bytes(rows: pa.Table | pa.RecordBatch) -> int:
    """The bytes of the rows if each has its own values: one of a dictionary's may stand in many.

    Raises DamagedArrowError for views, which may share their bytes too.
    """
    columns = [getattr(column, "chunks", [column]) for column in rows.columns]
    return int(rows.nbytes + sum(_decoded(chunk) for chunks in columns for chunk in chunks))


def _decoded(array: pa.Array) -> int:
    kind = array.type
    if "view" in str(kind):
        raise DamagedArrowError(f"a column has the type {kind}")
    if pa.types.is_dictionary(kind):
        values = array.dictionary
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            return int(pc.sum(pc.binary_length(values).take(array.indices)).as_py() or 0)
        return int(len(array) * (values.nbytes // max(len(values), 1) + _decoded(values)))
    if pa.types.is_struct(kind):
        return sum(map(_decoded, array.flatten()))
    return _decoded(array.flatten()) if hasattr(array, "flatten") and pa.types.is_nested(kind) else 0
