"""Clusters among the rollouts of one step, with nothing remembered: to compare a memory with having none."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.assignment import sizes_of
from meds_openrlhf.memory.clustering import Clustering, cluster_sets
from meds_openrlhf.memory.rows import group_codes, layer_logits_of


def sizes_in_batch(rows: pa.RecordBatch, transform: FeatureTransform, clustering: Clustering) -> NDArray[np.int32]:
    """For each of n rows the number of rows in its cluster (n,) int32, itself included; a row among noise is alone.

    Clustered together are the rows of one prompt and verdict.
    """
    codes, _ = group_codes(rows)
    order = np.argsort(codes, kind="stable")
    offsets = np.flatnonzero(np.diff(codes[order], prepend=-1, append=-1)) if len(rows) else np.zeros(1, np.int64)
    labels = cluster_sets(transform(layer_logits_of(rows))[order], offsets, clustering)
    sizes = np.empty(len(rows), np.int32)
    sizes[order] = np.maximum(sizes_of(labels, offsets, labels, offsets, "none"), 1)
    return sizes
