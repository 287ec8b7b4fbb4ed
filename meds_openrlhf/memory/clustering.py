"""HDBSCAN over one prompt's features, and which cluster a new rollout belongs to. Pure functions.

The same rows in the same order give the same labels on every machine, shard count and resume.
"""

from __future__ import annotations

from dataclasses import dataclass

import hdbscan
import numpy as np
from numpy.typing import NDArray

NOISE = -1

Labels = NDArray[np.int32]


@dataclass(frozen=True)
class Clustering:
    """HDBSCAN's two settings; the defaults are the paper's (Section 3.2)."""

    min_cluster_size: int = 2
    min_samples: int = 1


def cluster(features: NDArray[np.float64], settings: Clustering) -> Labels:
    """Labels (n,) int32 of ``features`` (n, d): clusters from 0 up, -1 for noise.

    Fewer than two rows, or no more than ``min_samples``, are noise. Raises ValueError for values that are not finite.
    """
    if not np.isfinite(features).all():
        raise ValueError("features: hold NaN or infinite values")
    count = len(features)
    if count < max(2, settings.min_samples + 1):
        return np.full(count, NOISE, dtype=np.int32)
    # "generic" is exact; the default takes an approximate spanning tree whose labels differ from every exact one's.
    # The copy is writable, which arrays out of Arrow and Ray are not and hdbscan insists on.
    model = hdbscan.HDBSCAN(
        min_cluster_size=settings.min_cluster_size,
        min_samples=settings.min_samples,
        algorithm="generic",
        approx_min_span_tree=False,
        core_dist_n_jobs=1,
    )
    labels: Labels = model.fit(np.array(features, dtype=np.float64)).labels_.astype(np.int32)
    return labels


def assign(queries: NDArray[np.float64], stored: NDArray[np.float64], labels: Labels, neighbors: int = 3) -> Labels:
    """Labels (m,) of ``queries`` (m, d): the majority among the nearest ``stored`` (n, d) ones, by cosine.

    Both are unit vectors; ``labels`` (n,) are those of the last clustering. Noise votes and can win; a tie goes to the
    label of the nearest neighbour. With nothing stored everything is noise.
    """
    if len(stored) == 0:
        return np.full(len(queries), NOISE, dtype=np.int32)
    # Rounded, so that duplicates tie exactly, whatever order the product was summed in; the earlier row then wins.
    similarity = np.round(queries @ stored.T, 12)  # (m, n)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :neighbors]  # (m, k)
    votes = labels[nearest]  # (m, k)
    counts = (votes[:, :, None] == votes[:, None, :]).sum(axis=2)  # (m, k): votes for each neighbour's label
    winners: Labels = votes[np.arange(len(votes)), counts.argmax(axis=1)]
    return winners
