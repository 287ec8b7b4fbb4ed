"""Reads recorded rollouts for a replay, step by step, from any Arrow file or from a run's log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.tools.stored_memory import StoredMemory

COLUMNS = ("step", "prompt_key", "correct", "layer_logits")
ANSWER_COLUMNS = ("label", "cluster_size", "penalty")  # from an earlier replay or the log; recomputed
FILE_MAGIC = b"ARROW1"


@dataclass(frozen=True)
class RecordedStep:
    """The n rollouts of one step: the recorded ``table`` and the input for the memory.

    ``features`` (k, N) float32 are the layer logits of the rows ``place`` (k,), which are the rows with finite logits;
    ``broken`` counts the rows with non-finite logits.
    """

    table: pa.Table
    prompts: list[str]
    correct: NDArray[np.bool_]
    place: NDArray[np.int64]
    features: NDArray[np.float32]
    broken: int


@dataclass(frozen=True)
class Recording:
    """Batches of rollouts with the columns of ``schema``; errors refer to the recording as ``name``."""

    name: str
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def steps(self) -> Iterator[RecordedStep]:
        """Yield the rollouts of every step. Raises ConfigError if steps decrease or a column has invalid values."""
        for table in self._tables():
            yield self._decoded(table)

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the rows of each step, across batches."""
        last: int | None = None
        for step, pieces in groupby(self._pieces(), key=itemgetter(0)):
            if last is not None and step < last:
                self._refuse("step", f"goes from {last} back to {step}; sort the rows by step")
            yield pa.Table.from_batches([rows for _, rows in pieces])
            last = step

    def _pieces(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the runs of rows of a batch that have one step, with the step."""
        for batch in self.batches:
            steps = self._column(pa.Table.from_batches([batch]), "step", pa.int64()).to_numpy()
            bounds = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)] if len(steps) else []
            yield from ((int(steps[begin]), batch.slice(begin, end - begin)) for begin, end in pairwise(bounds))

    def _decoded(self, table: pa.Table) -> RecordedStep:
        column = table.column("layer_logits")
        present = np.flatnonzero(column.is_valid().to_numpy())
        features = np.empty((0, 0), np.float32)
        if len(present):
            values = pa.concat_arrays([chunk.drop_null().flatten() for chunk in column.chunks])
            with np.errstate(over="ignore"):  # values too large for float32 become infinite
                flat = values.to_numpy(zero_copy_only=False).astype(np.float32)
            features = flat.reshape(len(present), self._layers(column))
        finite = np.isfinite(features).all(axis=1)
        return RecordedStep(
            table=table,
            prompts=self._column(table, "prompt_key", pa.string()).to_pylist(),
            correct=self._column(table, "correct", pa.bool_()).to_numpy().astype(bool),
            place=present[finite].astype(np.int64),
            features=features[finite],
            broken=int((~finite).sum()),
        )

    def _layers(self, column: pa.ChunkedArray) -> int:
        """Return the length of a column's lists, of which some are not null. Raises ConfigError if lengths differ."""
        lengths = pc.unique(pc.list_value_length(column.drop_null())).to_pylist()
        if len(lengths) > 1:
            self._refuse("layer_logits", f"has rows of {min(lengths)} and of {max(lengths)} layers; a model has one N")
        return int(lengths[0])

    def _column(self, table: pa.Table, name: str, wanted: pa.DataType) -> pa.ChunkedArray:
        column = table.column(name)
        if column.null_count:
            self._refuse(name, "is null in some rows; only layer_logits may be")
        try:
            return column.cast(wanted)
        except pa.ArrowInvalid as error:
            self._refuse(name, f"cannot be taken as {wanted} ({error})")

    def _refuse(self, column: str, hint: str) -> Any:
        raise ConfigError("STREAM", self.name, f"cannot be replayed: its column {column} {hint}")


@contextmanager
def open_stream(path: Path) -> Iterator[Recording]:
    """Open an Arrow IPC file or stream. Raises ConfigError if the file is neither or lacks a column."""
    try:
        source = pa.memory_map(str(path))
        is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError("STREAM", str(path), f"cannot be read as Arrow ({_one_line(error)})") from error
    _require_columns(path, reader.schema)
    with source:
        yield Recording(str(path), _plain(reader.schema), _read(path, reader))


def recording_of(memory: StoredMemory) -> Recording:
    """Return all rows of a run's log as a recording, with the columns renamed to those of a stream."""
    names = {"step": "step", "sample": "sample", "prompt": "prompt_key", "correct": "correct"}
    names["layer_logits"] = "layer_logits"
    schema = pa.schema([memory.schema.field(old).with_name(new) for old, new in names.items()])
    batches = (
        pa.RecordBatch.from_arrays([rows.column(old) for old in names], schema=schema)
        for _, rows in memory.rows_by_step()
    )
    return Recording(str(memory.paths.root), schema, batches)


def _read(path: Path, reader: Any) -> Iterator[pa.RecordBatch]:
    """Yield batches with decoded dictionaries, since an Arrow file cannot store dictionaries that change."""
    schema = _plain(reader.schema)
    is_file = isinstance(reader, pa.ipc.RecordBatchFileReader)
    batches = (reader.get_batch(number) for number in range(reader.num_record_batches)) if is_file else iter(reader)
    rows = 0
    try:
        for batch in batches:
            batch.validate()
            yield batch.cast(schema)
            rows += len(batch)
    except (pa.ArrowInvalid, OSError) as error:
        hint = f"ends after {rows} rows ({_one_line(error)}); record it again"
        raise ConfigError("STREAM", str(path), hint) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _plain(schema: pa.Schema) -> pa.Schema:
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _require_columns(path: Path, schema: pa.Schema) -> None:
    for name in COLUMNS:
        if len(schema.get_all_field_indices(name)) != 1:
            hint = f"has no column {name}; it needs step, prompt_key, correct and layer_logits"
            raise ConfigError("STREAM", str(path), hint)
    checks = {
        "step": ("an integer", pa.types.is_integer),
        "correct": ("bool", pa.types.is_boolean),
        "layer_logits": ("fixed_size_list<float32>[N]", _is_list_of_floats),
    }
    for name, (wanted, fits) in checks.items():
        found = schema.field(name).type
        if not fits(found):
            raise ConfigError("STREAM", str(path), f"has a column {name} of type {found}; it should be {wanted}")


def _is_list_of_floats(found: pa.DataType) -> bool:
    kinds = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    return any(kind(found) for kind in kinds) and pa.types.is_floating(found.value_type)
