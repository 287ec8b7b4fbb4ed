"""Reads memories of format 2, which earlier versions wrote: append-only Arrow streams, one batch per step.

Shards wrote segments ``shard-0003/000007.arrow`` and never appended to those of an earlier process. Each batch has its
step and the CRC-32 of its message as metadata. A process that died during a write left a torn batch at the end. A
manifest lists the segments with their bytes, rows and batches at the time of its checkpoint.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.log import LogState
from meds_openrlhf.memory.rows import log_schema, step_of

logger = logging.getLogger(__name__)

SEGMENT_PATH = re.compile(r"shard-\d{4,}/\d{6}\.arrow")
MESSAGE_MARK = b"\xff\xff\xff\xff"


def batches_in(folder: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows in a shard's folder, a batch for each step; the schema of a batch says whose prompts it holds.

    Raises MemoryCorruptionError if a segment is damaged.
    """
    paths = sorted(folder.glob("[0-9]" * 6 + ".arrow"))
    for path in paths:
        end = 0
        for batch, end in _read_segment(path, schema):
            yield batch
        if end < path.stat().st_size:
            if path != paths[-1]:
                raise MemoryCorruptionError(f"{path}: is damaged after byte {end}; restore it from a backup")
            logger.warning("%s: the bytes after its last whole batch are left out", path)


def state_of(segments: list[dict[str, Any]], manifest: Path, layers: int) -> LogState:
    """Return the state of the log that a manifest of format 2 describes by its ``segments``.

    Raises MemoryCorruptionError, naming the manifest, if the segments beside it do not begin with what it says.
    """
    step, rows = -1, dict[str, int]()
    for segment in segments:
        name, wanted = segment["name"], (segment["bytes"], segment["rows"], segment["batches"])
        if not isinstance(name, str) or not SEGMENT_PATH.fullmatch(name):
            raise MemoryCorruptionError(f"{manifest}: names {name!r}, which is not a segment of a memory")
        path, found = manifest.parents[1] / name, (0, 0, 0)
        for batch, end in _read_segment(path, log_schema(layers)) if path.is_file() else ():
            if end <= wanted[0]:
                found = end, found[1] + len(batch), found[2] + 1
                step = max(step, step_of(batch))
        if found != wanted:
            raise MemoryCorruptionError(f"{manifest}: does not fit {path}; restore that from a backup")
        rows[path.parent.name] = rows.get(path.parent.name, 0) + found[1]
    return LogState(step, rows)


def _read_segment(path: Path, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield every whole batch of a segment with the number of bytes up to its end; a torn tail is left out."""
    content = path.read_bytes()
    source = pa.BufferReader(content)
    end = begin = 0  # begin: start of the last message read as a batch
    try:
        reader = pa.ipc.open_stream(source)
        if not reader.schema.equals(schema):
            raise MemoryCorruptionError(f"{path}: holds other columns than this memory's; is it another model's?")
        if not {b"shard", b"shards"} <= (reader.schema.metadata or {}).keys():
            raise MemoryCorruptionError(f"{path}: does not say whose prompts it holds; restore it from a backup")
        message = source.tell()
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            _require_sound(batch, metadata)
            begin, message = message, source.tell()
            end = message
            yield batch, end
    except (StopIteration, pa.ArrowException, OSError, EOFError) as error:
        # Search from the start of the last valid batch: a damaged length may extend a batch into the next one.
        if _batch_follows(content, begin, schema):
            raise MemoryCorruptionError(
                f"{path}: is damaged after byte {end} ({error}); restore it from a backup"
            ) from None


def _require_sound(batch: pa.RecordBatch, metadata: Any) -> None:
    """Raise ArrowInvalid unless a batch is one that the log wrote and matches its checksum."""
    batch.validate(full=True)
    if batch.num_rows == 0 or dict(metadata or {}).get(b"crc32") != str(zlib.crc32(batch.serialize())).encode():
        raise pa.ArrowInvalid("a batch does not match its checksum")


def _batch_follows(content: bytes, position: int, schema: pa.Schema) -> bool:
    """Return whether a whole batch follows ``position``; if so, unreadable bytes are damage, not a torn tail."""
    head = schema.serialize().to_pybytes()
    place = content.find(MESSAGE_MARK, position + 1)
    while place >= 0:
        try:
            reader = pa.ipc.open_stream(head + content[place:])
            _require_sound(*reader.read_next_batch_with_custom_metadata())
        except (StopIteration, pa.ArrowException, OSError, EOFError):
            place = content.find(MESSAGE_MARK, place + 1)
        else:
            return True
    return False
