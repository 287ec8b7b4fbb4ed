"""The index of one segment: where its batches lie and where in them each prompt's rows are, without the rows.

Kept in memory while a segment is written, beside the segment (``000007.index``) once it is sealed. It is derived: one
that is missing or damaged is made again from the segment.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from array import array
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.memory.moments import NO_MOMENTS, Moments
from meds_openrlhf.memory.rows import group_codes, layer_logits_of
from meds_openrlhf.memory.segment import BatchEntry, SegmentState, Sharding, read_batches, read_schema

VISIT_COLUMNS = {"batch": np.int32, "first": np.int32, "count": np.int32}
CHECKSUM_BYTES = 4


@dataclass
class SegmentIndex:
    """Batches in order, and visits: a visit is a run of rows of one prompt and verdict within one batch.

    ``prompts`` and ``correct`` name each visit's prompt and verdict, ``visits[name]`` (v,) int32 its ``batch``, the
    ``first`` row in it and the ``count`` of rows. ``moments`` are those of all N layers of all rows.
    """

    sharding: Sharding
    batches: list[BatchEntry] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    visits: dict[str, array[int]] = field(default_factory=lambda: {name: array("i") for name in VISIT_COLUMNS})
    moments: Moments = NO_MOMENTS

    @property
    def bytes(self) -> int:
        """How far the segment is indexed."""
        return self.batches[-1].end if self.batches else 0

    def add(self, batch: pa.RecordBatch, entry: BatchEntry) -> int:
        """Take in the next batch; how many visits it has."""
        prompts, correct, first, count = visits_of(batch)
        self.prompts += prompts
        self.correct += correct
        self.visits["batch"].extend([len(self.batches)] * len(first))
        self.visits["first"].extend(first.tolist())
        self.visits["count"].extend(count.tolist())
        self.batches.append(entry)
        self.moments = self.moments.merge(Moments.of(layer_logits_of(batch).astype(np.float64)))
        return len(first)

    def state(self, name: str) -> SegmentState:
        """What a snapshot says of the segment as it is now."""
        last = self.batches[-1]
        rows = sum(entry.rows for entry in self.batches)
        return SegmentState(name, self.sharding.shards, last.end, rows, len(self.batches), last.running_crc32)

    def batches_until(self, state: SegmentState) -> int | None:
        """How many batches make up exactly the bytes that ``state`` describes; None where none do."""
        for number, entry in enumerate(self.batches, start=1):
            if (entry.end, entry.running_crc32) == (state.bytes, state.crc32):
                rows = sum(one.rows for one in self.batches[:number])
                return number if (number, rows) == (state.batches, state.rows) else None
        return None


def visits_of(batch: pa.RecordBatch) -> tuple[list[str], list[bool], NDArray[np.int32], NDArray[np.int32]]:
    """A batch's runs of one prompt and verdict: prompts, verdicts, first rows (v,) and counts (v,)."""
    code, names = group_codes(batch)
    first = np.flatnonzero(np.r_[True, code[1:] != code[:-1]]).astype(np.int32)
    count = np.diff(np.r_[first, len(batch)]).astype(np.int32)
    begins = code[first].tolist()
    return [names[one // 2] for one in begins], [one % 2 == 1 for one in begins], first, count


def scan_segment(path: Path, schema: pa.Schema, limit: int | None = None) -> SegmentIndex | None:
    """The index of a segment, from reading all of it or its first ``limit`` bytes; None where no schema is whole.

    Raises MemoryCorruptionError like `segment.read_batches`.
    """
    content = list(read_batches(path, schema, limit))
    found = read_schema(path)
    if found is None:
        return None
    index = SegmentIndex(Sharding.of(found, path))
    for batch, entry in content:
        index.add(batch, entry)
    return index


def index_path(segment: Path) -> Path:
    """Where a segment's index lies."""
    return segment.with_suffix(".index")


def write_index(segment: Path, index: SegmentIndex) -> None:
    """Write the index of a sealed segment. What fails here is only made again later, so the file is not synced."""
    header = {
        "sharding": asdict(index.sharding),
        "batches": [list(asdict(entry).values()) for entry in index.batches],
        "moments": [index.moments.count, index.moments.mean.tolist(), index.moments.scatter.tolist()],
    }
    columns = {name: pa.array(np.array(index.visits[name], dtype)) for name, dtype in VISIT_COLUMNS.items()}
    table = pa.table(
        {"prompt": pa.array(index.prompts, pa.string()), "correct": pa.array(index.correct, pa.bool_()), **columns}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.with_metadata({"segment": json.dumps(header)})) as writer:
        writer.write_table(table)
    content = sink.getvalue().to_pybytes()
    temporary = segment.with_name(f".{segment.stem}.index.tmp")
    temporary.write_bytes(content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little"))
    os.replace(temporary, index_path(segment))


def read_index(segment: Path) -> SegmentIndex | None:
    """The index beside a sealed segment; None where there is none, it is damaged, or the segment has another length."""
    try:
        content = index_path(segment).read_bytes()
        body = content[:-CHECKSUM_BYTES]
        if zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "little") != content[-CHECKSUM_BYTES:]:
            return None
        table = pa.ipc.open_stream(body).read_all()
        index = _from_table(table, json.loads(table.schema.metadata[b"segment"]))
        return index if index.bytes == segment.stat().st_size else None
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None


def _from_table(table: pa.Table, header: dict[str, Any]) -> SegmentIndex:
    count, mean, scatter = header["moments"]
    index = SegmentIndex(
        sharding=Sharding(**header["sharding"]),
        batches=[BatchEntry(*entry) for entry in header["batches"]],
        prompts=[sys.intern(prompt) for prompt in table.column("prompt").to_pylist()],  # once for all its visits
        correct=table.column("correct").to_pylist(),
        visits={name: array("i", table.column(name).to_numpy().astype(np.intc).tobytes()) for name in VISIT_COLUMNS},
        moments=Moments(count, np.array(mean), np.array(scatter)),
    )
    _require_whole(index)
    return index


def _require_whole(index: SegmentIndex) -> None:
    """Raise ValueError unless batches follow each other and visits cover their rows, each once and in order."""
    starts, ends = [0, *(entry.end for entry in index.batches)], [entry.start for entry in index.batches]
    if starts[:-1] != ends or any(not one.start <= one.logits < one.end or one.rows < 1 for one in index.batches):
        raise ValueError("batches do not follow each other")
    batch, first, count = (np.array(index.visits[name], np.int64) for name in VISIT_COLUMNS)
    if (np.diff(batch) < 0).any() or (count < 1).any():
        raise ValueError("visits are not in order")
    if len(batch) and not 0 <= batch[0] <= batch[-1] < len(index.batches):
        raise ValueError("visits are of other batches")
    before = np.cumsum(count) - count
    rows = np.array([entry.rows for entry in index.batches], np.int64)
    begins = np.cumsum(rows) - rows
    if count.sum() != rows.sum() or not np.array_equal(before - begins[batch], first):
        raise ValueError("visits do not cover the rows")
