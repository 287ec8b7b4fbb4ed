"""HDBSCAN over the features of each prompt: many sets in one call, compiled, without the GIL. Pure functions.

The same rows in the same order give the same labels on every machine, with every number of shards and after a resume,
regardless of which other prompts are clustered in the same call. With min_samples = 1, the paper's setting, the mutual
reachability of two rows is their distance, so the hierarchy is the single linkage tree. The steps follow the
publications (Campello, Moulavi and Sander 2013; McInnes and Healy 2017; Malzer and Baum 2020 for epsilon) and give the
same labels as the hdbscan package, including its infinite densities and float32 sums:

    rows -> minimum spanning tree -> single linkage tree -> condensed tree -> excess of mass, epsilon -> labels

A density (lambda) is the inverse of a distance. If distances tie, the row with the lower number comes first in every
step. What is compiled is in `compiled`, which imports numba: only HDBSCAN needs it.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from meds_openrlhf.config.method import ClusteringMethod
from meds_openrlhf.memory.sets import NOISE, Floats, Integers, Labels, plain


def cluster_sets(features: Floats, offsets: Integers, method: ClusteringMethod) -> Labels:
    """Return labels (n,) int32 of g sets: within each, clusters are numbered from 0, and noise is -1.

    Set i is rows ``offsets[i]`` to ``offsets[i + 1]`` of ``features`` (n, d); ``offsets`` (g + 1,) rises from 0 to n.
    A set with a single row is noise, unless ``method.algorithm`` is "equal". Raises ValueError for other offsets and
    for non-finite values.
    """
    offsets = plain(offsets, np.int64)
    # Compiled code does not check bounds.
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(features) or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets: must rise from 0 to the number of rows, {len(features)}")
    if not np.isfinite(features).all():
        raise ValueError("features: hold NaN or infinite values")
    if not len(features):  # the report of a run without errors needs no compiler
        return np.zeros(0, np.int32)
    if method.algorithm in ("hdbscan", "robust"):
        from meds_openrlhf.memory.compiled import hdbscan_sets

        robust = method.algorithm == "robust"
        epsilon = math.nan if robust else 0.0
        labels: Labels = hdbscan_sets(plain(features, np.float64), offsets, method.min_cluster_size, robust, epsilon)
        return labels
    cluster_one = _cluster_equal if method.algorithm == "equal" else _cluster_by_library
    labels = np.full(len(features), NOISE, dtype=np.int32)
    for start, stop in pairwise(offsets):
        labels[start:stop] = cluster_one(features[start:stop], method.min_cluster_size)
    return labels


def _cluster_equal(points: Floats, _min_cluster_size: int) -> list[int]:
    known: dict[bytes, int] = {}
    return [known.setdefault(key, len(known)) for key in keys_of(points)]


def keys_of(points: Floats) -> list[bytes]:
    """Return bytes (n) that are the same for equal rows of ``points`` (n, d), also for 0.0 and -0.0."""
    return [row.tobytes() for row in points + np.float32(0)]


def _cluster_by_library(points: Floats, min_cluster_size: int) -> Labels:
    """Return labels (n,) by the hdbscan package's defaults, which include an approximate spanning tree."""
    if len(points) < 2:
        return np.full(len(points), NOISE, np.int32)
    import hdbscan  # takes a second to import, and the other algorithms do not need it

    model = hdbscan.HDBSCAN(min_cluster_size=min_cluster_size, min_samples=1, core_dist_n_jobs=1)
    labels: Labels = model.fit(np.array(points, np.float64)).labels_.astype(np.int32)  # fit wants a writable copy
    return labels
