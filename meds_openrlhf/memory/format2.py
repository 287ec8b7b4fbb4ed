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

from meds_openrlhf.files import open_file
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.log import LogState
from meds_openrlhf.memory.rows import log_schema, step_of
from meds_openrlhf.paths import entries_of, inside

logger = logging.getLogger(__name__)

SEGMENT_PATH = re.compile(r"shard-\d{4,}/\d{6}\.arrow")


def batches_in(folder: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows in a shard's folder, a batch for each step; the schema of a batch names the shard.

    An unreadable end of a segment is skipped with a warning, because a process may have died while it wrote. If the
    segment is damaged instead, `state_of` finds that rows of a snapshot are missing.
    """
    for path in entries_of(folder.parent, folder):
        if not SEGMENT_PATH.fullmatch(f"{folder.name}/{path.name}"):
            continue
        for batch, _ in _read_segment(path, schema):
            yield batch


def state_of(segments: list[dict[str, Any]], manifest: Path, layers: int) -> LogState:
    """Return the state of the log that a manifest of format 2 describes by its ``segments``.

    Raises MemoryCorruptionError, naming the manifest, if the segments beside it lack rows that it lists.
    """
    step, rows = -1, dict[str, int]()
    for segment in segments:
        name, wanted = segment["name"], (segment["bytes"], segment["rows"], segment["batches"])
        if not isinstance(name, str) or not SEGMENT_PATH.fullmatch(name):
            raise MemoryCorruptionError(f"{manifest}: names {name!r}, which is not a segment of a memory")
        path, found = inside(manifest.parents[1], name), (0, 0, 0)
        for batch, end in _read_segment(path, log_schema(layers)) if path.is_file() else ():
            if end <= wanted[0]:
                found = end, found[1] + len(batch), found[2] + 1
                step = max(step, step_of(batch))
        if found != wanted:
            raise MemoryCorruptionError(f"{manifest}: does not fit {path}; restore that from a backup")
        rows[path.parent.name] = rows.get(path.parent.name, 0) + found[1]
    return LogState(step, rows)


def _read_segment(path: Path, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the batches of a segment, each with the byte at which it ends, up to the first incomplete batch."""
    with open_file(path) as file:
        content = file.read()
    source = pa.BufferReader(content)
    end = 0
    try:
        reader = pa.ipc.open_stream(source)
        if not reader.schema.equals(schema) or not {b"shard", b"shards"} <= (reader.schema.metadata or {}).keys():
            raise MemoryCorruptionError(f"{path}: holds other columns than this memory's; is it another model's?")
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
            if dict(metadata or {}).get(b"crc32") != str(zlib.crc32(batch.serialize())).encode():
                raise pa.ArrowInvalid("a batch does not match its checksum")
            end = source.tell()
            yield batch, end
    except (StopIteration, pa.ArrowException, OSError, EOFError):
        if end < len(content):
            logger.warning("%s: its last %d bytes are torn or damaged, and are skipped", path, len(content) - end)
