"""What a run left behind, as one table: its log of rollouts beside the layer logits that its memory keeps of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.tools.stored_memory import StoredMemory, open_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.rollout_log import ROLLOUT_SCHEMA, read_rollouts


def run_schema(layers: int) -> pa.Schema:
    """Columns of the log of rollouts, and ``layer_logits``, null where the memory has no row."""
    logits = pa.list_(pa.field("item", pa.float32(), nullable=False), layers)
    return ROLLOUT_SCHEMA.append(pa.field("layer_logits", logits))


def run_rows(run: Path) -> pa.Table:
    """All rollouts in a run's log, in the order of (step, sample), with the columns of `run_schema`.

    Raises ConfigError where the run has no log of rollouts, no memory, or one of final answers, and where the two do
    not belong together; MemoryCorruptionError where the memory is damaged.
    """
    rollouts = logged_rollouts(run)
    memory = open_memory(run)
    if memory.format.holds_answers:
        raise ConfigError("RUN", str(run), "remembers final answers, not layer logits; name another run")
    return _joined(rollouts, memory, run)


def logged_rollouts(run: Path) -> pa.Table:
    """All rollouts in a run's log, in the order of (step, sample), whether there is a memory or not.

    Raises ConfigError where the run is not there or has no log.
    """
    if not run.is_dir():
        raise ConfigError("RUN", str(run), "does not exist; name a run's folder")
    steps = list(read_rollouts(RunPaths(run)))
    if not steps:
        mend = "has no log of rollouts; train with --meds.tracking.rollouts all, or sampled"
        raise ConfigError("RUN", str(run), mend)
    whole = pa.concat_tables(steps).unify_dictionaries().combine_chunks()
    return whole.sort_by([("step", "ascending"), ("sample", "ascending")])


def remembered_wrong(rows: pa.Table) -> pa.Table:
    """Those of the rows of `run_rows` that are wrong and have layer logits: what the paper clusters."""
    return rows.filter(pc.and_(pc.invert(rows["correct"]), pc.is_valid(rows["layer_logits"])))


def layer_logits(rows: pa.Table) -> NDArray[np.float32]:
    """Layer logits (n, N) of rows of `run_rows`. Raises ValueError where a row has none."""
    column = rows["layer_logits"]
    if column.null_count:
        raise ValueError(f"layer_logits: null in {column.null_count} of {len(rows)} rows; filter them out first")
    values: NDArray[np.float32] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(rows), column.type.list_size)


def _joined(rollouts: pa.Table, memory: StoredMemory, run: Path) -> pa.Table:
    """Rollouts with their logits; rows of the memory of steps that are not in the log are left aside."""
    names, layers = ("step", "sample", "prompt", "correct"), memory.format.layers
    place = {key: index for index, key in enumerate(zip(*(rollouts[name].to_pylist() for name in names[:2])))}
    prompts, correct = (rollouts[name].to_pylist() for name in names[2:])
    logits = np.zeros((len(rollouts), layers), np.float32)
    missing = np.ones(len(rollouts), dtype=bool)
    for step, batch in memory.rows_by_step():
        values = batch.column("layer_logits").flatten().to_numpy().reshape(len(batch), layers)
        stored = zip(*(batch.column(name).to_pylist() for name in names[1:]), values)
        for sample, prompt, right, row in stored:
            index = place.get((step - memory.format.step_offset, sample))
            if index is None:
                continue
            if (prompts[index], correct[index]) != (prompt, right):
                mend = f"has a memory that is not of its rollouts (step {step}, sample {sample}); take a whole copy"
                raise ConfigError("RUN", str(run), mend)
            logits[index], missing[index] = row, False
    schema = run_schema(layers)
    column = pa.FixedSizeListArray.from_arrays(
        pa.array(logits.reshape(-1)), type=schema.field("layer_logits").type, mask=pa.array(missing)
    )
    return rollouts.append_column(schema.field("layer_logits"), column).cast(schema)
