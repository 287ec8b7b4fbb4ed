"""Recluster a run's wrong rollouts, by any feature of the paper's ablation (Section 5.3) and any preset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import NOISE, cluster_sets
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.runs.log import prompt_codes
from meds_openrlhf.runs.rows import layer_logits

SINGLE = "single"
# The paper's names for a model of 28 layers are 28, 14, 28-diff, 14-diff; "single" needs no features.
FEATURES = {
    "all": FeatureTransform(layers="all"),
    "last-half": FeatureTransform(layers="last-half"),
    "all-diff": FeatureTransform(layers="all", difference="before"),
    "last-half-diff": FeatureTransform(layers="last-half", difference="before"),
    SINGLE: None,
}
VARIANTS = tuple(FEATURES)
LOGIT_PRESETS = ("paper", "reference", "robust")  # the presets that cluster layer logits


def own_transform(run: Path) -> FeatureTransform:
    """The feature that the run's memory of layer logits clusters. Raises ConfigError if the run has no memory."""
    memory = open_memory(run)
    return memory.transform(memory.settings())


def labels_of_feature(rows: pa.Table, transform: FeatureTransform | None, preset: str) -> NDArray[np.int64]:
    """Cluster all rows of each prompt: cluster numbers (n,), unique over prompts, -1 for noise.

    Pass all `rows.wrong_rows`, because they determine the clusters, and draw samples afterwards. Without a
    ``transform`` every prompt is a cluster, even with a single row.
    """
    prompts = prompt_codes(rows)
    if transform is None:
        return prompts
    order = np.argsort(prompts, kind="stable")  # by prompt, oldest rows first
    offsets = np.cumsum([0, *np.bincount(prompts)])
    table = pd.DataFrame({"prompt": prompts[order]}, index=order)
    table["label"] = cluster_sets(transform(layer_logits(rows))[order], offsets, PRESETS[preset])
    numbers = table[table.label != NOISE].groupby(["prompt", "label"]).ngroup()
    labels: NDArray[np.int64] = numbers.reindex(range(len(rows)), fill_value=NOISE).to_numpy(np.int64)
    return labels
