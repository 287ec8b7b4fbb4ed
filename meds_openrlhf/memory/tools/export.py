"""Exports the whole log to one Parquet file, for notebooks and data frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.files import published_file, refuse_inside
from meds_openrlhf.memory.tools.stored_memory import StoredMemory

ROWS_AT_ONCE = 65_536  # rows of a Parquet row group, and roughly the number of rows in RAM


def export_parquet(memory: StoredMemory, target: Path) -> int:
    """Write all rows of the log to ``target``, ordered by step and sample; return their number.

    The columns are the log's (docs/storage.md). Raises ConfigError if the file cannot be written, and
    MemoryCorruptionError, with nothing published, if a segment is damaged.
    """
    from pyarrow import parquet

    refuse_inside(target, memory.paths.root)
    rows = 0
    with published_file(target) as path, parquet.ParquetWriter(path, memory.schema) as writer:
        for table in _in_portions(memory):
            writer.write_table(table, row_group_size=ROWS_AT_ONCE)
            rows += len(table)
    return rows


def _in_portions(memory: StoredMemory) -> Iterator[pa.Table]:
    """Yield the rows of several steps at a time."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for _, batch in memory.rows_by_step():
        waiting.append(batch)
        rows += len(batch)
        if rows >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
