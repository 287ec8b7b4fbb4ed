"""A run's wrong rollouts with their layer logits, and their clusters by any feature of the paper's ablation (5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.features.kind import Kind
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.rows import layer_logits_of
from meds_openrlhf.memory.sets import NOISE
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.rollouts.run import NONE, logged_rollouts, places_among, prompt_codes

SINGLE = "single"
# The paper's names for a model of 28 layers are 28, 14, 28-diff, 14-diff; "single" needs no features.
FEATURES = {
    "all": FeatureTransform(layers="all"),
    "last-half": FeatureTransform(layers="last-half"),
    "all-diff": FeatureTransform(layers="all", difference="before"),
    "last-half-diff": FeatureTransform(layers="last-half", difference="before"),
    SINGLE: None,
}
LOGIT_PRESETS = ("paper", "reference", "robust")  # the presets that cluster layer logits


def wrong_rows(run: Path, columns: Sequence[str] = ()) -> pa.Table:
    """A run's wrong rollouts that have layer logits, as clustered in the paper, in the order of (step, sample).

    Columns are step, sample, prompt, correct, those of ``columns``, and ``layer_logits``. Rows of the memory that are
    not in the log are ignored. Raises ConfigError if the run has no such rollouts, no rollout log, no memory, or a
    memory of final answers, or if log and memory do not belong together; MemoryCorruptionError if the memory is
    damaged.
    """
    rows, memory = logged_rollouts(run, columns), open_memory(run)
    if memory.format.kind is not Kind.LAYER_LOGITS:
        raise ConfigError("RUN", str(run), f"remembers {memory.format.kind.value}, not layer logits. Name another run.")
    stored = memory.table()
    place = places_among(*((table["step"].to_numpy(), table["sample"].to_numpy()) for table in (rows, stored)))
    order = np.argsort(place)[np.count_nonzero(place == NONE) :]
    remembered = np.zeros(len(rows), dtype=bool)
    remembered[place[order]] = True
    stored, rows = stored.take(pa.array(order)), rows.filter(pa.array(remembered))
    same = pc.and_(*(pc.equal(rows[name], stored[name]) for name in ("prompt", "correct")))
    for strange in stored.filter(pc.invert(same)).slice(0, 1).to_pylist():
        where = f"(step {strange['step']}, sample {strange['sample']})"
        raise ConfigError("RUN", str(run), f"has a memory of other rollouts {where}. Copy the whole run again.")
    rows = rows.append_column("layer_logits", stored["layer_logits"])
    wrong = rows.filter(pc.invert(rows["correct"]))
    if not len(wrong):
        raise ConfigError("RUN", str(run), "has no wrong rollouts with layer logits. Name another run.")
    return wrong


def own_transform(run: Path) -> FeatureTransform:
    """The feature that the run's memory of layer logits clusters. Raises ConfigError if the run has no memory."""
    memory = open_memory(run)
    return memory.transform(memory.settings())


def labels_of_feature(rows: pa.Table, transform: FeatureTransform | None, preset: str) -> NDArray[np.int64]:
    """Cluster all rows of each prompt: cluster numbers (n,), unique over prompts, -1 for noise.

    Pass all `wrong_rows`, because they determine the clusters, and draw samples afterwards. Without a
    ``transform`` every prompt is a cluster, even with a single row.
    """
    prompts = prompt_codes(rows)
    if transform is None:
        return prompts
    order = np.argsort(prompts, kind="stable")  # by prompt, oldest rows first
    offsets = np.cumsum([0, *np.bincount(prompts)])
    table = pd.DataFrame({"prompt": prompts[order]}, index=order)
    table["label"] = cluster_sets(transform(layer_logits_of(rows))[order], offsets, PRESETS[preset])
    numbers = table[table.label != NOISE].groupby(["prompt", "label"]).ngroup()
    labels: NDArray[np.int64] = numbers.reindex(range(len(rows)), fill_value=NOISE).to_numpy(np.int64)
    return labels
