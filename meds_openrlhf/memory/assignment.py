"""Assigns new rollouts to clusters of stored rollouts, for many prompts at once. Pure functions over sets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.method import Method
from meds_openrlhf.memory.clustering import NOISE, Floats, Labels, cluster_sets, compiled, keys_of, plain

UNASSIGNED = -2  # a first visit: no rows are stored or clustered yet
NEIGHBORS = 3  # stored rows that vote on a new row, as in the reference code


class Sets(NamedTuple):
    """New and stored rows of g sets, independent of each other: set i is ``rows[offsets[i]:offsets[i + 1]]``."""

    new: Floats  # (m, d)
    new_offsets: NDArray[np.int64]  # (g + 1,)
    stored: Floats  # (n, d)
    offsets: NDArray[np.int64]  # (g + 1,)
    labels: Labels  # (n,) of the stored rows, from their last clustering


def assign(sets: Sets, method: Method) -> tuple[Labels, Labels]:
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


def vote(sets: Sets, method: Method) -> Labels:
    """Return labels (m,) int32 of the new rows: the most frequent among the labels of the `NEIGHBORS` nearest rows.

    Nearest by cosine; a zero row is not similar to any row. If a set stores fewer rows, all of them vote. Noise votes
    and can win. Among equally near rows the row stored first counts as nearer.

    With ties "smallest", scikit-learn searches the neighbours of one row at a time, as the reference code does. This
    takes at least half a millisecond per row, several hundred times as long as "nearest". With the algorithm "equal"
    the label is that of an equal stored row, and NOISE without one.
    """
    assigned: Labels = np.full(len(sets.new), UNASSIGNED, dtype=np.int32)
    if method.algorithm != "equal" and method.ties == "nearest":
        _vote_nearest(sets, assigned)
        return assigned
    find = _find_equal if method.algorithm == "equal" else _vote_smallest
    for (first, last), (start, stop) in zip(pairwise(sets.new_offsets), pairwise(sets.offsets), strict=True):
        if start < stop:
            assigned[first:last] = find(sets.new[first:last], sets.stored[start:stop], sets.labels[start:stop])
    return assigned


@compiled
def _vote_nearest(sets: Sets, assigned: Labels) -> None:
    """Fill ``assigned`` (m,) for all sets that have stored rows."""
    offsets, new_offsets = sets.offsets, sets.new_offsets
    dimensions = sets.stored.shape[1]
    longest = np.diff(offsets).max() if len(offsets) > 1 else 0
    columns = np.empty((dimensions, longest))  # stored rows of a set as unit vectors, transposed
    similarity = np.empty(longest)
    near_similarity = np.empty(NEIGHBORS)
    near_label = np.empty(NEIGHBORS, dtype=np.int32)
    for group in range(len(offsets) - 1):
        first, count = offsets[group], offsets[group + 1] - offsets[group]
        if count == 0 or new_offsets[group] == new_offsets[group + 1]:
            continue
        for row in range(count):
            squares = 0.0
            for column in range(dimensions):
                squares += sets.stored[first + row, column] * sets.stored[first + row, column]
            scale = 1.0 / np.sqrt(squares) if squares > 0.0 else 1.0
            for column in range(dimensions):
                columns[column, row] = sets.stored[first + row, column] * scale
        for query in range(new_offsets[group], new_offsets[group + 1]):
            # The loop over rows is inside, and each row's terms are summed in the order of its dimensions: fast without
            # reordering sums, so exact duplicates get exactly equal similarities. The query's length does not matter.
            similarity[:count] = 0.0
            for dimension in range(dimensions):
                value, column_values = sets.new[query, dimension], columns[dimension]
                for row in range(count):
                    similarity[row] += value * column_values[row]
            voters = _nearest(similarity, sets.labels[first : first + count], near_similarity, near_label)
            # The nearest row wins, unless the other two of three agree.
            winner = 1 if voters == 3 and near_label[1] == near_label[2] else 0
            assigned[query] = near_label[winner]


@compiled
def _nearest(similarity: Floats, labels: Labels, near_similarity: Floats, near_label: Labels) -> int:
    """Put the labels of the nearest rows into ``near_label`` (k,), nearest first; return their number."""
    filled = 0
    for row in range(len(labels)):
        if filled == len(near_label) and similarity[row] <= near_similarity[filled - 1]:
            continue  # not among the nearest: by far the most frequent case
        place = min(filled, len(near_label) - 1)
        while place > 0 and similarity[row] > near_similarity[place - 1]:
            near_similarity[place], near_label[place] = near_similarity[place - 1], near_label[place - 1]
            place -= 1
        near_similarity[place], near_label[place] = similarity[row], labels[row]
        filled = min(filled + 1, len(near_label))
    return filled


@compiled
def _sizes_of(assigned: Labels, new_offsets: Any, labels: Labels, offsets: Any, smallest: int) -> Labels:
    """Return the number of ``labels`` (n,) of its set that equal each of ``assigned`` (m,); 0 below ``smallest``."""
    sizes = np.zeros(len(assigned), np.int32)
    for group in range(len(offsets) - 1):
        for query in range(new_offsets[group], new_offsets[group + 1]):
            if assigned[query] >= smallest:
                for row in range(offsets[group], offsets[group + 1]):
                    sizes[query] += labels[row] == assigned[query]
    return sizes


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
