"""A run's log of rollouts, joined with the layer logits in its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis.logged_rollouts import joined, logged_steps
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.rows import layer_logits_of
from meds_openrlhf.memory.stored import open_memory


def run_rows(run: Path, columns: Sequence[str] = ()) -> pa.Table:
    """All rollouts in a run's log, in the order of (step, sample).

    Columns are step, sample, prompt, correct, those of ``columns``, and ``layer_logits``, which is null if the memory
    has no row. Rows of the memory that are not in the log are ignored. Raises ConfigError if the run has no log of
    rollouts, no memory, or a memory of final answers, or if log and memory do not belong together;
    MemoryCorruptionError if the memory is damaged.
    """
    steps = {table["step"][0].as_py(): table for table in logged_steps(run, columns)}
    memory = open_memory(run)
    if memory.format.holds_answers:
        raise ConfigError("RUN", str(run), "remembers final answers, not layer logits. Name another run.")
    layers, complete = memory.format.layers, {}
    for stored_step, rows in memory.rows_by_step():
        step = stored_step - memory.format.step_offset
        if step in steps:
            places, logged = _places_of(rows, steps[step], run, stored_step)
            complete[step] = _with_logits(steps[step], places, layer_logits_of(rows)[logged])
    nothing = np.empty(0, np.int64), np.empty((0, layers), np.float32)
    return joined([complete[step] if step in complete else _with_logits(steps[step], *nothing) for step in steps])


def remembered_wrong(rows: pa.Table) -> pa.Table:
    """The rows of `run_rows` that are wrong and have layer logits, as clustered in the paper."""
    return rows.filter(pc.and_(pc.invert(rows["correct"]), pc.is_valid(rows["layer_logits"])))


def layer_logits(rows: pa.Table) -> NDArray[np.float32]:
    """Layer logits (n, N) of rows of `run_rows`. Raises ValueError if a row has none."""
    column = rows["layer_logits"]
    if column.null_count:
        raise ValueError(f"layer_logits: null in {column.null_count} of {len(rows)} rows. Filter them out first.")
    values: NDArray[np.float32] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(rows), column.type.list_size)


def _places_of(
    rows: pa.RecordBatch, table: pa.Table, run: Path, step: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The indices in the step's ``table`` of the memory's rows (m) that are in it, and a mask (m,) of these rows.

    Raises ConfigError if a row belongs to another rollout than the table's row.
    """
    samples, stored = table["sample"].to_numpy(), rows.column("sample").to_numpy()
    places = np.searchsorted(samples, stored).clip(max=len(samples) - 1)
    logged = samples[places] == stored
    found = table.select(["prompt", "correct"]).take(pa.array(places))
    same = pc.and_(*(pc.equal(found[name], rows.column(name)) for name in ("prompt", "correct"))).to_numpy()
    strange = np.flatnonzero(logged & ~same)
    if len(strange):
        where = f"(step {step}, sample {stored[strange[0]]})"
        raise ConfigError("RUN", str(run), f"has a memory of other rollouts {where}. Copy the whole run again.")
    return places[logged].astype(np.int64), logged


def _with_logits(table: pa.Table, places: NDArray[np.int64], values: NDArray[np.float32]) -> pa.Table:
    """Append ``layer_logits`` to ``table`` (n rows): ``values`` (m, N) at ``places`` (m,), null elsewhere."""
    logits = np.zeros((len(table), values.shape[1]), np.float32)
    missing = np.ones(len(table), dtype=bool)
    logits[places], missing[places] = values, False
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), values.shape[1])
    column = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), type=kind, mask=pa.array(missing))
    return table.append_column(pa.field("layer_logits", kind), column)
