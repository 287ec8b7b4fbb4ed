"""Assigns new rollouts to clusters of stored rollouts, for many prompts at once. Pure functions over sets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.method import ClusteringMethod
from meds_openrlhf.memory.clustering import cluster_sets, keys_of
from meds_openrlhf.memory.sets import NEIGHBORS, NOISE, UNASSIGNED, Floats, Labels, Sets, plain


def assign(sets: Sets, method: ClusteringMethod) -> tuple[Labels, Labels]:
    """Return labels and cluster sizes (m,) int32 of the new rows; all values must be finite.

    New rows of a set without stored rows are UNASSIGNED, with size 0: a first visit only fills the memory. By
    ``method.assignment`` "knn" (see `vote`) sizes count stored rows only. By "joint", stored and new rows of a set are
    clustered together, and sizes count both. Noise has size 0 unless ``method.noise`` makes it a cluster.
    """
    sets = sets._replace(new=plain(sets.new, np.float64))
    smallest = NOISE if method.noise == "cluster" else NOISE + 1
    if method.assignment == "knn":
        assigned = vote(sets, method)
        return assigned, _sizes_of(assigned, sets.new_offsets, sets.labels, sets.offsets, smallest)
    both = sets.offsets + sets.new_offsets
    is_new = np.zeros(both[-1], dtype=bool)
    for end, count in zip(both[1:], np.diff(sets.new_offsets)):
        is_new[end - count : end] = True
    together = np.empty((len(is_new), sets.new.shape[1]))
    together[is_new], together[~is_new] = sets.new, sets.stored
    clustered = cluster_sets(together, both, method)
    first_visit = np.repeat(np.diff(sets.offsets) == 0, np.diff(sets.new_offsets))
    assigned = np.where(first_visit, UNASSIGNED, clustered[is_new]).astype(np.int32)
    return assigned, _sizes_of(assigned, sets.new_offsets, clustered, both, smallest)


def vote(sets: Sets, method: ClusteringMethod) -> Labels:
    """Return labels (m,) int32 of the new rows: the most frequent among the labels of the `NEIGHBORS` nearest rows.

    Nearest by cosine; a zero row is not similar to any row. If a set stores fewer rows, all of them vote. Noise votes
    and can win. Among equally near rows the row stored first counts as nearer.

    With ties "smallest", scikit-learn searches the neighbors of one row at a time, as the reference code does. This
    takes at least half a millisecond per row, several hundred times as long as "nearest". With the algorithm "equal"
    the label is that of an equal stored row, and NOISE without one.
    """
    assigned: Labels = np.full(len(sets.new), UNASSIGNED, dtype=np.int32)
    if method.algorithm != "equal" and method.ties == "nearest":
        from meds_openrlhf.memory.compiled import vote_nearest

        vote_nearest(sets, assigned)
        return assigned
    find = _find_equal if method.algorithm == "equal" else _vote_smallest
    for (first, last), (start, stop) in zip(pairwise(sets.new_offsets), pairwise(sets.offsets), strict=True):
        if start < stop:
            assigned[first:last] = find(sets.new[first:last], sets.stored[start:stop], sets.labels[start:stop])
    return assigned


def _sizes_of(
    assigned: Labels, new_offsets: NDArray[np.int64], labels: Labels, offsets: NDArray[np.int64], smallest: int
) -> Labels:
    """Return the number of ``labels`` (n,) of its set that equal each of ``assigned`` (m,); 0 below ``smallest``."""
    counted, counts = np.unique(_in_sets(labels, offsets), return_counts=True)
    wanted = _in_sets(assigned, new_offsets)
    place = np.searchsorted(counted, wanted)
    known = (assigned >= smallest) & (place < len(counted))
    known[known] = counted[place[known]] == wanted[known]
    sizes = np.zeros(len(assigned), np.int32)
    sizes[known] = counts[place[known]]
    return sizes


def _in_sets(labels: Labels, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each label (n,) that is the same for equal labels of a set, and not in two sets."""
    group = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    in_sets: NDArray[np.int64] = (group << 32) + labels
    return in_sets


def _vote_smallest(new: Floats, stored: Floats, labels: Labels) -> list[int]:
    """Return the labels of the new rows of one set."""
    from sklearn.neighbors import NearestNeighbors  # type: ignore[import-untyped]

    model, assigned = NearestNeighbors(n_neighbors=min(NEIGHBORS, len(stored)), metric="cosine").fit(stored), []
    # One row at a time: a product with many rows rounds differently, which can decide between equal distances.
    for query in range(len(new)):
        nearest = model.kneighbors(new[query : query + 1], return_distance=False)[0]
        candidates, votes = np.unique(labels[nearest], return_counts=True)
        assigned.append(candidates[votes.argmax()])
    return assigned


def _find_equal(new: Floats, stored: Floats, labels: Labels) -> list[int]:
    """Return the labels of the new rows of one set; NOISE if no stored row is equal."""
    known = dict(zip(keys_of(stored), labels))
    return [known.get(key, NOISE) for key in keys_of(new)]
