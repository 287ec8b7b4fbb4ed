"""Reads recorded rollouts for a replay, step by step, from any Arrow file or from a run's log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
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

    def layers(self, column: pa.ChunkedArray) -> int | None:
        """Return the list length of a column, None if all rows are null. Raises ConfigError if lengths differ."""
        if pa.types.is_fixed_size_list(column.type):
            return int(column.type.list_size)
        lengths = pc.unique(pc.list_value_length(column.drop_null())).to_pylist()
        if len(lengths) > 1:
            self._refuse("layer_logits", f"has rows of {min(lengths)} and of {max(lengths)} layers; a model has one N")
        return lengths[0] if lengths else None

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the rows of each step, across batches."""
        waiting: list[pa.RecordBatch] = []
        last: int | None = None
        for batch in self.batches:
            steps = self._column(pa.Table.from_batches([batch]), "step", pa.int64()).to_numpy()
            for begin, end in _runs(steps):
                step = int(steps[begin])
                if last is not None and step < last:
                    self._refuse("step", f"goes from {last} back to {step}; sort the rows by step")
                if step != last and waiting:
                    yield pa.Table.from_batches(waiting)
                    waiting = []
                waiting.append(batch.slice(begin, end - begin))
                last = step
        if waiting:
            yield pa.Table.from_batches(waiting)

    def _decoded(self, table: pa.Table) -> RecordedStep:
        column = table.column("layer_logits")
        present = np.flatnonzero(column.is_valid().to_numpy())
        features = np.empty((0, 0), np.float32)
        if len(present):
            values = pa.concat_arrays([chunk.drop_null().flatten() for chunk in column.chunks])
            with np.errstate(over="ignore"):  # values too large for float32 become infinite
                flat = values.to_numpy(zero_copy_only=False).astype(np.float32)
            features = flat.reshape(len(present), self.layers(column) or 0)
        finite = np.isfinite(features).all(axis=1)
        return RecordedStep(
            table=table,
            prompts=self._column(table, "prompt_key", pa.string()).to_pylist(),
            correct=self._column(table, "correct", pa.bool_()).to_numpy().astype(bool),
            place=present[finite].astype(np.int64),
            features=features[finite],
            broken=int((~finite).sum()),
        )

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
    batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if _is_file(reader) else iter(reader)
    rows = 0
    try:
        for batch in batches:
            batch.validate()
            yield pa.RecordBatch.from_arrays([c.cast(t) for c, t in zip(batch.columns, schema.types)], schema=schema)
            rows += len(batch)
    except (pa.ArrowInvalid, OSError) as error:
        hint = f"ends after {rows} rows ({_one_line(error)}); record it again"
        raise ConfigError("STREAM", str(path), hint) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _is_file(reader: Any) -> bool:
    return hasattr(reader, "num_record_batches")


def _plain(schema: pa.Schema) -> pa.Schema:
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _require_columns(path: Path, schema: pa.Schema) -> None:
    for name in COLUMNS:
        if len(schema.get_all_field_indices(name)) != 1:
            hint = f"has no column {name}; it needs step, prompt_key, correct and layer_logits"
            raise ConfigError("STREAM", str(path), hint)
    checks = {
        "step": pa.types.is_integer,
        "correct": pa.types.is_boolean,
        "layer_logits": _is_list_of_floats,
    }
    for name, fits in checks.items():
        found = schema.field(name).type
        if not fits(found):
            wanted = {"step": "an integer", "correct": "bool"}.get(name, "fixed_size_list<float32>[N]")
            raise ConfigError("STREAM", str(path), f"has a column {name} of type {found}; it should be {wanted}")


def _is_list_of_floats(found: pa.DataType) -> bool:
    kinds = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    return any(kind(found) for kind in kinds) and pa.types.is_floating(found.value_type)


def _runs(values: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Return the start and end of every run of equal ``values`` (n,)."""
    bounds = np.flatnonzero(np.diff(values)) + 1
    edges = [0, *bounds.tolist(), len(values)]
    return ((begin, end) for begin, end in pairwise(edges) if begin < end)
