"""HDBSCAN over the features of each prompt. Pure functions.

The same rows in the same order give the same labels on every machine, with every number of shards and after a resume,
regardless of which other prompts are clustered in the same call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.features.transform import unit_vectors
from meds_openrlhf.memory import linkage

NOISE = linkage.NOISE

AUTO = "auto"
METRICS = ("euclidean", "manhattan", "cosine")

Labels = NDArray[np.int32]


@dataclass(frozen=True)
class Clustering:
    """HDBSCAN settings, with cluster selection by excess of mass; the defaults are the paper's (Section 3.2).

    ``selection_epsilon`` is the distance below which clusters are not split. "auto" derives it from the
    nearest-neighbour distances of each set (`linkage.automatic_epsilon`) and drops scatter; "manhattan" does not
    support it. If ``exact`` is false, the hdbscan package runs with its own defaults, which include an approximate
    spanning tree; use this to compare with code that calls it that way. ``algorithm`` "equal" replaces HDBSCAN: equal
    rows form a cluster, which may have a single row, and no row is noise. Raises ValueError for invalid settings.
    """

    min_cluster_size: int = 2
    min_samples: int = 1
    metric: str = "euclidean"
    allow_single_cluster: bool = False
    selection_epsilon: float | str = 0.0
    exact: bool = True
    algorithm: str = "hdbscan"

    def __post_init__(self) -> None:
        """Reject settings that no code path supports."""
        if self.algorithm not in ("hdbscan", "equal"):
            raise ValueError(f"algorithm: {self.algorithm!r}, must be hdbscan or equal")
        if self.min_cluster_size < 2:
            raise ValueError(f"min_cluster_size: {self.min_cluster_size}, must be at least 2")
        if self.min_samples < 1:
            raise ValueError(f"min_samples: {self.min_samples}, must be at least 1")
        if self.metric not in METRICS:
            raise ValueError(f"metric: {self.metric!r}, must be one of {', '.join(METRICS)}")
        if self.metric == "cosine" and not self.exact:
            raise ValueError("metric: 'cosine' needs exact, hdbscan's default algorithm does not have it")
        if self.selection_epsilon == AUTO:
            if self.metric == "manhattan":
                raise ValueError("selection_epsilon: 'auto' needs metric 'euclidean' or 'cosine', not 'manhattan'")
        elif isinstance(self.selection_epsilon, str) or not 0 <= self.selection_epsilon < math.inf:
            raise ValueError(f"selection_epsilon: {self.selection_epsilon!r}, must be a number from 0 up, or 'auto'")


def cluster(features: NDArray[np.float64], settings: Clustering) -> Labels:
    """Return labels (n,) int32 of one set ``features`` (n, d): clusters from 0 up, -1 for noise.

    If there are fewer than two rows, or at most ``min_samples``, all are noise. Raises ValueError for non-finite
    values.
    """
    return cluster_sets(features, np.array([0, len(features)], dtype=np.int64), settings)


def cluster_sets(features: NDArray[np.float64], offsets: NDArray[np.int64], settings: Clustering) -> Labels:
    """Return labels (n,) int32 of g sets at once; each set gets the labels that `cluster` gives it.

    Set i is rows ``offsets[i]`` to ``offsets[i + 1]`` of ``features`` (n, d); ``offsets`` (g + 1,) rises from 0 to n.
    Raises ValueError for other offsets and for non-finite values.
    """
    offsets = checked_offsets(offsets, len(features))
    if not np.isfinite(features).all():
        raise ValueError("features: hold NaN or infinite values")
    if settings.algorithm == "equal":
        return _cluster_equal(features, offsets)
    if settings.exact and settings.metric == "euclidean" and settings.min_samples == 1:
        return _cluster_compiled(features, offsets, settings)
    labels = np.full(len(features), NOISE, dtype=np.int32)
    for start, stop in pairwise(offsets):
        if stop - start > settings.min_samples:
            labels[start:stop] = _cluster_by_hdbscan(features[start:stop], settings)
    return labels


def checked_offsets(offsets: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Validate the ``offsets`` of sets with ``rows`` rows in total, because compiled code does not check bounds."""
    bounds = plain(offsets, np.int64)
    if len(bounds) == 0 or bounds[0] != 0 or bounds[-1] != rows or (np.diff(bounds) < 0).any():
        raise ValueError(f"offsets: must rise from 0 to the number of rows, {rows}")
    return bounds


def plain(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Return the array as compiled code expects it; numba would compile a second version for read-only arrays."""
    return np.require(array, dtype, ["C", "W"])


def sizes_in_batch(features: NDArray[np.float64], codes: NDArray[np.int64], settings: Clustering) -> Labels:
    """Return for each row the size (n,) int32 of its cluster, including the row itself; 1 for noise.

    Rows of ``features`` (n, d) with the same value in ``codes`` (n,) are clustered together. The function keeps no
    state; it serves to compare training with and without a memory.
    """
    order = np.argsort(codes, kind="stable")
    offsets = np.flatnonzero(np.diff(codes[order], prepend=-1, append=-1)) if len(codes) else np.zeros(1, np.int64)
    labels = np.empty(len(codes), np.int32)
    labels[order] = cluster_sets(features[order], offsets, settings)
    _, cluster_of, counts = np.unique(np.stack([codes, labels]), axis=1, return_inverse=True, return_counts=True)
    return np.where(labels == NOISE, 1, counts[cluster_of.reshape(-1)]).astype(np.int32)


def _cluster_equal(features: NDArray[np.float64], offsets: NDArray[np.int64]) -> Labels:
    labels = np.empty(len(features), dtype=np.int32)
    for start, stop in pairwise(offsets):
        known: dict[bytes, int] = {}
        for row in range(start, stop):
            labels[row] = known.setdefault(features[row].tobytes(), len(known))
    return labels


def _cluster_compiled(features: NDArray[np.float64], offsets: NDArray[np.int64], settings: Clustering) -> Labels:
    epsilon = math.nan if settings.selection_epsilon == AUTO else float(settings.selection_epsilon)
    with np.errstate(all="ignore"):  # for the interpreter; compiled code does not warn
        return linkage.cluster_sets(
            plain(features, np.float64),
            offsets,
            int(settings.min_cluster_size),
            bool(settings.allow_single_cluster),
            np.full(len(offsets) - 1, epsilon),
        )


def _cluster_by_hdbscan(points: NDArray[np.float64], settings: Clustering) -> Labels:
    """Return labels (n,) of one set of ``points`` (n, d) with n > ``min_samples``."""
    points = np.array(points, dtype=np.float64)  # a writable copy, which hdbscan requires
    if settings.selection_epsilon != AUTO:
        plain: Labels = _fit(points, settings, float(settings.selection_epsilon)).labels_.astype(np.int32)
        return plain
    epsilon, farthest = _automatic_distances(points, settings)
    model = _fit(points, settings, epsilon)
    labels: Labels = model.labels_.astype(np.int32)
    rows = model.condensed_tree_.to_numpy()
    rows = np.sort(rows[rows["child"] < len(points)], order="child")
    linkage.drop_scatter(labels, rows["lambda_val"].copy(), farthest, settings.min_cluster_size)
    return labels


def _automatic_distances(points: NDArray[np.float64], settings: Clustering) -> tuple[float, float]:
    """Return epsilon and the distance beyond which rows are scatter, by the rule of the compiled path.

    The rule uses Euclidean lengths, here from the exact tree over mutual reachability. The cosine distance is half the
    squared distance between unit vectors.
    """
    cosine = settings.metric == "cosine"
    points = unit_vectors(points) if cosine else points
    exact = replace(settings, metric="euclidean", exact=True)
    tree = _fit(points, exact, 0.0).single_linkage_tree_.to_numpy()
    left, right, heights, _ = np.ascontiguousarray(tree.T)
    farthest = linkage.farthest_distance(points)
    epsilon = float(linkage.automatic_epsilon(left.astype(np.int64), right.astype(np.int64), heights, farthest))
    return (epsilon**2 / 2, farthest**2 / 2) if cosine else (epsilon, farthest)


def _fit(points: NDArray[np.float64], settings: Clustering, epsilon: float) -> Any:
    """Return a fitted hdbscan model; with ``exact`` it gets distances and does not compute them from dot products."""
    options: dict[str, Any] = {"metric": settings.metric}
    if settings.exact:
        options = {"metric": "precomputed", "algorithm": "generic", "approx_min_span_tree": False}
        points = _distances(points, settings.metric)
    import hdbscan  # takes a second to import, and the compiled path does not need it

    return hdbscan.HDBSCAN(
        min_cluster_size=int(settings.min_cluster_size),
        min_samples=int(settings.min_samples),
        allow_single_cluster=settings.allow_single_cluster,
        cluster_selection_epsilon=epsilon,
        core_dist_n_jobs=1,
        **options,
    ).fit(points)


def _distances(points: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    """Return distances (n, n), exactly 0 between equal rows, unlike 1 - x.y and x.x - 2 x.y + y.y."""
    from scipy.spatial.distance import cdist  # type: ignore[import-untyped]  # slow to import, like hdbscan

    name = {"euclidean": "euclidean", "manhattan": "cityblock", "cosine": "sqeuclidean"}[metric]
    points = unit_vectors(points) if metric == "cosine" else points
    distances: NDArray[np.float64] = cdist(points, points, name) * (0.5 if metric == "cosine" else 1.0)
    return distances
