"""A segment that is read at random: logits straight out of the mapped file, batches by number.

No batch is trusted unseen: the first time that anything of it is asked for, its checksum is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.row_index import RowIndex
from meds_openrlhf.memory.segment import FLOAT_BYTES, BatchEntry, SegmentState, logits_address, map_file, read_batch
from meds_openrlhf.memory.segment_index import VISIT_COLUMNS, SegmentIndex, index_path, visits_of
from meds_openrlhf.paths import name_in_memory


@dataclass(frozen=True)
class Visits:
    """Visits of some batches of a segment, ready for the row index: ``offset`` (v,) in float32s, ``count`` (v,)."""

    prompts: list[str]
    correct: list[bool]
    offset: NDArray[np.int64]
    count: NDArray[np.int32]

    def only(self, wanted: NDArray[np.bool_]) -> Visits:
        """Those where ``wanted`` (v,) is true."""
        kept = np.flatnonzero(wanted)
        return Visits(
            [self.prompts[i] for i in kept], [self.correct[i] for i in kept], self.offset[kept], self.count[kept]
        )


class StoredSegment:
    """One segment of a memory of ``layers`` decoder layers, as far as ``index`` goes."""

    def __init__(
        self, path: Path, index: SegmentIndex, schema: pa.Schema, *, verified: bool, sealed: bool = True
    ) -> None:
        self.path = path
        self._sealed = sealed
        self.index = index
        self._schema = schema
        self._layers = schema.field("layer_logits").type.list_size
        self._content = pa.py_buffer(b"")
        self._unverified = set() if verified else set(range(len(index.batches)))
        self._starts: NDArray[np.int64] | None = None
        self._batch_of_visit: NDArray[np.int64] | None = None

    @property
    def name(self) -> str:
        """Its path below the memory's folder."""
        return name_in_memory(self.path)

    @property
    def state(self) -> SegmentState:
        """What a snapshot says of it."""
        return self.index.state(self.name)

    @property
    def last_step(self) -> int:
        """The step of its last batch, -1 for none."""
        return self.index.batches[-1].step if self.index.batches else -1

    def seal(self) -> None:
        """Nothing is added from here on."""
        self._sealed, self._content = True, pa.py_buffer(b"")

    def append(self, batch: pa.RecordBatch, entry: BatchEntry) -> Visits:
        """Take in a batch that has just been written here; its visits."""
        return self.visits(newest=self.index.add(batch, entry))

    def visits(self, newest: int | None = None) -> Visits:
        """All visits, or the ``newest`` so many."""
        begin = 0 if newest is None else len(self.index.prompts) - newest
        batch, first, count = (np.array(self.index.visits[name][begin:], np.int64) for name in VISIT_COLUMNS)
        first_batch = int(batch[0]) if len(batch) else 0
        logits = np.array([entry.logits for entry in self.index.batches[first_batch:]], dtype=np.int64)
        offset = logits[batch - first_batch] // FLOAT_BYTES + first * self._layers
        return Visits(self.index.prompts[begin:], self.index.correct[begin:], offset, count.astype(np.int32))

    def read(self, number: int) -> pa.RecordBatch:
        """Batch ``number``. Raises MemoryCorruptionError where it is not what was written."""
        content, entry = self._mapped(), self.index.batches[number]
        batch = read_batch(content, entry, self._schema, self.path)
        if number in self._unverified:
            self._require_described(batch, number, logits_address(batch) - content.address)
            self._unverified.discard(number)
        return batch

    def of_step(self, step: int) -> list[pa.RecordBatch]:
        """The batches of one step."""
        return [self.read(number) for number, entry in enumerate(self.index.batches) if entry.step == step]

    def logits(self, offsets: NDArray[np.int64]) -> NDArray[np.float32]:
        """The whole file as float32s, once the batches that hold ``offsets`` (v,) are proven sound."""
        if self._unverified:
            for number in np.unique(np.searchsorted(self._batch_starts(), offsets, side="right") - 1).tolist():
                if number in self._unverified:
                    self.read(number)
        content = self._mapped()
        return np.frombuffer(content, dtype=np.float32, count=len(content) // FLOAT_BYTES)

    def _require_described(self, batch: pa.RecordBatch, number: int, logits: int) -> None:
        """Raise MemoryCorruptionError unless the index says of a batch what it holds."""
        begin, end = np.searchsorted(self._visit_batches(), [number, number + 1])
        prompts, correct, first, count = visits_of(batch)
        visits = self.index.visits
        told = (self.index.prompts[begin:end], self.index.correct[begin:end], visits["first"][begin:end].tolist())
        entry = self.index.batches[number]
        if (
            (entry.logits, entry.rows) != (logits, len(batch))
            or told != (prompts, correct, first.tolist())
            or visits["count"][begin:end].tolist() != count.tolist()
        ):
            path = index_path(self.path)
            raise MemoryCorruptionError(f"{path}: does not describe batch {number} of its segment; remove it")

    def _visit_batches(self) -> NDArray[np.int64]:
        if self._batch_of_visit is None:  # of what was opened; what is written later is not checked
            self._batch_of_visit = np.array(self.index.visits["batch"], dtype=np.int64)
        return self._batch_of_visit

    def _batch_starts(self) -> NDArray[np.int64]:
        if self._starts is None or len(self._starts) != len(self.index.batches):
            self._starts = np.array([entry.logits // FLOAT_BYTES for entry in self.index.batches], dtype=np.int64)
        return self._starts

    def _mapped(self) -> pa.Buffer:
        if len(self._content) < self.index.bytes:
            self._content = map_file(self.path, populate=self._sealed)
        return self._content


def index_of(segments: Sequence[StoredSegment]) -> RowIndex:
    """All rows of the segments by prompt and verdict; its segments are numbered as they are given."""
    index = RowIndex()
    for number, segment in enumerate(segments):
        visits = segment.visits()
        index.add(visits.prompts, visits.correct, number, visits.offset, visits.count)
    return index
