"""Recluster a run's wrong rollouts, by any feature of the paper's ablation (Section 5.3) and any preset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.method import PRESETS
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import NOISE, cluster_sets
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.runs.log import prompt_codes
from meds_openrlhf.runs.rows import layer_logits

# The paper's names for a model of 28 layers are 28, 14, 28-diff, 14-diff; "single" needs no features.
TRANSFORMS = {
    "all": FeatureTransform(layers="all"),
    "last-half": FeatureTransform(layers="last-half"),
    "all-diff": FeatureTransform(layers="all", difference="before"),
    "last-half-diff": FeatureTransform(layers="last-half", difference="before"),
}
SINGLE = "single"
VARIANTS = (*TRANSFORMS, SINGLE)
LOGIT_PRESETS = ("paper", "reference", "robust")  # the presets that cluster layer logits


def own_transform(run: Path) -> FeatureTransform:
    """The feature that the run's memory of layer logits clusters. Raises ConfigError if the run has no memory."""
    memory = open_memory(run)
    return memory.transform(memory.settings())


def labels_of_variant(rows: pa.Table, variant: str, preset: str) -> NDArray[np.int64]:
    """Cluster by a variant: see `labels_of_feature`. Raises ValueError for an unknown variant."""
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant}: must be one of {', '.join(VARIANTS)}.")
    return labels_of_feature(rows, TRANSFORMS.get(variant), preset)


def labels_of_feature(rows: pa.Table, transform: FeatureTransform | None, preset: str) -> NDArray[np.int64]:
    """Cluster all rows of each prompt: cluster numbers (n,), unique over prompts, -1 for noise.

    ``rows`` are remembered rollouts of a single verdict, as returned by `run_rows.remembered_wrong`. Pass all of them,
    because they determine the clusters, and draw samples afterwards. Without a ``transform`` every prompt is a cluster,
    even with a single row. Raises ValueError for an unknown preset, rows without logits, or mixed verdicts.
    """
    if preset not in LOGIT_PRESETS:
        raise ValueError(f"preset={preset}: must be one of {', '.join(LOGIT_PRESETS)}.")
    if len(rows["correct"].unique()) > 1:
        raise ValueError("rows: must be only right or only wrong rollouts, which are clustered separately.")
    prompts = prompt_codes(rows)
    if transform is None:
        return prompts
    order = np.argsort(prompts, kind="stable")  # by prompt, oldest rows first
    sizes = np.bincount(prompts)
    labels = cluster_sets(transform(layer_logits(rows))[order], np.cumsum([0, *sizes]), PRESETS[preset])
    clusters = np.zeros(len(sizes), np.int64)  # of each prompt
    np.maximum.at(clusters, prompts[order], labels + 1)
    before = np.repeat(np.cumsum(clusters) - clusters, sizes)
    unique = np.empty(len(rows), dtype=np.int64)
    unique[order] = np.where(labels == NOISE, NOISE, labels + before)
    return unique
