"""Clusters of one step's rollouts alone, for comparison with the memory (meds.penalty.scope: batch)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.method import Method
from meds_openrlhf.memory.clustering import NOISE, cluster_sets


def sizes_in_batch(features: NDArray[np.float64], codes: NDArray[np.int64], method: Method) -> NDArray[np.int32]:
    """Return for each row the size (n,) int32 of its cluster, including the row itself; 1 for noise.

    Rows of ``features`` (n, d) with the same value in ``codes`` (n,) are clustered together.
    """
    order = np.argsort(codes, kind="stable")
    offsets = np.flatnonzero(np.diff(codes[order], prepend=-1, append=-1)) if len(codes) else np.zeros(1, np.int64)
    labels = np.empty(len(codes), np.int32)
    labels[order] = cluster_sets(features[order], offsets, method)
    _, cluster_of, counts = np.unique(np.stack([codes, labels]), axis=1, return_inverse=True, return_counts=True)
    return np.where(labels == NOISE, 1, counts[cluster_of.reshape(-1)]).astype(np.int32)
