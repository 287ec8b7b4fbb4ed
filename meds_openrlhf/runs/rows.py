"""A run's log of rollouts, joined with the layer logits in its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.runs.log import NONE, logged_rollouts, place_key


def run_rows(run: Path, columns: Sequence[str] = ()) -> pa.Table:
    """All rollouts in a run's log, in the order of (step, sample).

    Columns are step, sample, prompt, correct, those of ``columns``, and ``layer_logits``, which is null if the memory
    has no row. Rows of the memory that are not in the log are ignored. Raises ConfigError if the run has no log of
    rollouts, no memory, or a memory of final answers, or if log and memory do not belong together;
    MemoryCorruptionError if the memory is damaged.
    """
    rows, memory = logged_rollouts(run, columns), open_memory(run)
    if memory.format.holds_answers:
        raise ConfigError("RUN", str(run), "remembers final answers, not layer logits. Name another run.")
    stored, offset = memory.table(), memory.format.step_offset
    keys = pd.Index(place_key(rows["step"].to_numpy(), rows["sample"].to_numpy()))
    place = keys.get_indexer(place_key(stored["step"].to_numpy() - offset, stored["sample"].to_numpy()))
    stored, place = stored.filter(pa.array(place != NONE)), place[place != NONE]
    logged = rows.select(["prompt", "correct"]).take(pa.array(place))
    same = pc.and_(*(pc.equal(logged[name], stored[name]) for name in logged.column_names))
    for strange in stored.filter(pc.invert(same)).slice(0, 1).to_pylist():
        where = f"(step {strange['step']}, sample {strange['sample']})"
        raise ConfigError("RUN", str(run), f"has a memory of other rollouts {where}. Copy the whole run again.")
    logits = np.zeros((len(rows), memory.format.layers), np.float32)
    missing = np.ones(len(rows), dtype=bool)
    logits[place], missing[place] = layer_logits(stored), False
    kind = memory.schema.field("layer_logits").type
    column = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), type=kind, mask=pa.array(missing))
    return rows.append_column("layer_logits", column)


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
