"""Assigns new rollouts to clusters by a vote of their nearest stored neighbours, for many prompts at once.

Everything here works on *sets*: the rows of set i are ``rows[offsets[i]:offsets[i + 1]]``, and sets are independent of
each other. The functions are pure; the same input gives the same answer on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.clustering import NOISE, Clustering, Labels, checked_offsets, cluster_sets, plain
from meds_openrlhf.memory.compiled import compiled

UNASSIGNED = -2  # a first visit: no rows are stored or clustered yet

FloatArray = NDArray[np.float64]
Offsets = NDArray[np.int64]

_CHOICES = {"method": ("knn", "joint", "equal"), "metric": ("cosine", "euclidean"), "ties": ("nearest", "smallest")}


@dataclass(frozen=True)
class Assignment:
    """How a new rollout is assigned to a cluster.

    ``method``: "knn", the majority among the ``neighbors`` nearest stored rows; "equal", the cluster of an equal stored
    row; or "joint", clustering stored and new rows together (see `assign_jointly`). The other fields apply to "knn"
    only. ``metric``: "cosine" or "euclidean". ``ties``: in a tied vote "nearest" picks the label of the nearest
    neighbour and is fast; "smallest" picks the smallest label, noise included, and is slow (see `assign_sets`). Raises
    ValueError for other values.
    """

    method: str = "knn"
    neighbors: int = 3
    metric: str = "cosine"
    ties: str = "nearest"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: {getattr(self, name)!r} is neither {' nor '.join(choices)}")
        if self.neighbors < 1:
            raise ValueError(f"neighbors: {self.neighbors} is below 1")


def assign_sets(
    queries: FloatArray,
    query_offsets: Offsets,
    stored: FloatArray,
    offsets: Offsets,
    labels: Labels,
    settings: Assignment,
) -> Labels:
    """Return labels (m,) int32 for ``queries`` (m, d); the ``stored`` rows of set i vote on the queries of set i.

    ``query_offsets`` and ``offsets`` (g + 1,) int64 bound the g sets in ``queries`` and in ``stored`` (n, d) with
    their ``labels`` (n,). All values must be finite. Rows may have any length; with the cosine metric a zero row is not
    similar to any row. If a set stores fewer rows than ``neighbors``, all of them vote; if it stores no rows, the label
    is UNASSIGNED. Noise votes and can win. Among equally near rows the row stored first counts as nearer.

    With ties "smallest", scikit-learn searches the neighbours of one query at a time, as the reference code does. This
    takes at least half a millisecond per row, several hundred times as long as "nearest"; use it to compare with that
    code.

    Raises ValueError for method "joint" and for arrays with inconsistent sizes.
    """
    if settings.method == "joint":
        raise ValueError(f"method: {settings.method!r} is no vote; cluster stored and new rows together instead")
    query_offsets, offsets = checked_offsets(query_offsets, len(queries)), checked_offsets(offsets, len(stored))
    if len(query_offsets) != len(offsets) or len(labels) != len(stored) or queries.shape[1] != stored.shape[1]:
        raise ValueError(
            f"queries {queries.shape} in {len(query_offsets) - 1} sets do not fit stored {stored.shape} "
            f"in {len(offsets) - 1} sets with {len(labels)} labels"
        )
    sets = (plain(queries, np.float64), query_offsets, plain(stored, np.float64), offsets, plain(labels, np.int32))
    assigned: Labels = np.full(len(queries), UNASSIGNED, dtype=np.int32)
    if settings.method == "equal":
        _find_equal(*sets, assigned)
    elif settings.ties == "nearest":
        _vote_nearest(*sets, settings.neighbors, settings.metric == "euclidean", assigned)
    else:
        _vote_smallest(*sets, settings, assigned)
    return assigned


def sizes_of(assigned: Labels, query_offsets: Offsets, labels: Labels, offsets: Offsets, noise: str) -> Labels:
    """Return the sizes (m,) int32 of the clusters ``assigned`` (m,), counting stored rows only.

    ``labels`` (n,) are the labels of the stored rows; the offsets bound the sets as in `assign_sets`. UNASSIGNED has
    size 0. ``noise``: "none" gives noise size 0, "cluster" counts noise rows like those of any cluster.
    """
    query_offsets, offsets = checked_offsets(query_offsets, len(assigned)), checked_offsets(offsets, len(labels))
    sizes: Labels = np.zeros(len(assigned), dtype=np.int32)
    smallest = NOISE if noise == "cluster" else NOISE + 1
    _count_labels(plain(assigned, np.int32), query_offsets, plain(labels, np.int32), offsets, smallest, sizes)
    return sizes


def assign_jointly(
    new: FloatArray, new_offsets: Offsets, stored: FloatArray, offsets: Offsets, clustering: Clustering, noise: str
) -> tuple[Labels, Labels]:
    """Cluster the ``stored`` and ``new`` rows of each set together; return labels and sizes (m,) of ``new`` (m, d).

    The other arguments are as for `assign_sets` and `sizes_of`. A cluster's size includes the new rows. New rows of
    sets without stored rows are UNASSIGNED: a first visit only fills the memory.
    """
    both = offsets + new_offsets
    is_new = np.zeros(len(new) + len(stored), dtype=bool)
    for end, count in zip(both[1:], np.diff(new_offsets)):
        is_new[end - count : end] = True
    together = np.empty((len(is_new), new.shape[1]))
    together[is_new], together[~is_new] = new, stored
    clustered = cluster_sets(together, both, clustering)
    first_visit = np.repeat(np.diff(offsets) == 0, np.diff(new_offsets))
    labels = np.where(first_visit, UNASSIGNED, clustered[is_new]).astype(np.int32)
    return labels, sizes_of(labels, new_offsets, clustered, both, noise)


# ── ties to the nearest neighbour: compiled ──


@compiled
def _vote_nearest(
    queries: FloatArray,
    query_offsets: Offsets,
    stored: FloatArray,
    offsets: Offsets,
    labels: Labels,
    neighbors: int,
    euclidean: bool,
    assigned: Labels,
) -> None:
    """Fill ``assigned`` (m,) for all sets that have stored rows."""
    longest = np.diff(offsets).max() if len(offsets) > 1 else 0
    columns = np.empty((stored.shape[1], longest))
    similarity = np.empty(longest)
    near_similarity = np.empty(neighbors)
    near_label = np.empty(neighbors, dtype=np.int32)
    for group in range(len(offsets) - 1):
        first, count = offsets[group], offsets[group + 1] - offsets[group]
        if count == 0 or query_offsets[group] == query_offsets[group + 1]:
            continue
        for row in range(count):
            scale = 1.0 if euclidean else _inverse_length(stored[first + row])
            for column in range(stored.shape[1]):
                columns[column, row] = stored[first + row, column] * scale
        for query in range(query_offsets[group], query_offsets[group + 1]):
            _similarities(queries[query], columns, count, euclidean, similarity)
            voters = _nearest(similarity, labels[first : first + count], near_similarity, near_label)
            assigned[query] = _majority(near_label, voters)


@compiled
def _inverse_length(row: FloatArray) -> float:
    """Return the factor that scales ``row`` (d,) to unit length; 1 for a zero row."""
    squares = 0.0
    for value in row:
        squares += value * value
    return 1.0 / np.sqrt(squares) if squares > 0.0 else 1.0


@compiled
def _similarities(query: FloatArray, columns: FloatArray, count: int, euclidean: bool, similarity: FloatArray) -> None:
    """Fill ``similarity`` (count,) of a query (d,) to the stored rows in the columns of ``columns`` (d, count or more).

    For cosine the columns are unit vectors; the query need not be, since its length does not affect the order. The
    inner loop runs over rows, and each row's terms are summed in the order of its dimensions. This is fast without
    reordering sums, so exact duplicates get exactly equal similarities.
    """
    similarity[:count] = 0.0
    for dimension in range(len(query)):
        value = query[dimension]
        column = columns[dimension]
        if euclidean:
            for row in range(count):
                similarity[row] -= (value - column[row]) ** 2
        else:
            for row in range(count):
                similarity[row] += value * column[row]


@compiled
def _nearest(similarity: FloatArray, labels: Labels, near_similarity: FloatArray, near_label: Labels) -> int:
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
def _majority(near_label: Labels, voters: int) -> Any:
    """Return the most frequent label in ``near_label[:voters]``; a tie goes to the label that comes first."""
    winner, most = near_label[0], 0
    for candidate in range(voters):
        votes = 0
        for voter in range(voters):
            votes += near_label[voter] == near_label[candidate]
        if votes > most:
            winner, most = near_label[candidate], votes
    return winner


@compiled
def _count_labels(
    assigned: Labels, query_offsets: Offsets, labels: Labels, offsets: Offsets, smallest: int, sizes: Labels
) -> None:
    """Fill ``sizes`` (m,) for labels of at least ``smallest``."""
    for group in range(len(offsets) - 1):
        for query in range(query_offsets[group], query_offsets[group + 1]):
            if assigned[query] >= smallest:
                for row in range(offsets[group], offsets[group + 1]):
                    sizes[query] += labels[row] == assigned[query]


# ── ties to the smallest label, as in the reference code ──


def _vote_smallest(
    queries: FloatArray,
    query_offsets: Offsets,
    stored: FloatArray,
    offsets: Offsets,
    labels: Labels,
    settings: Assignment,
    assigned: Labels,
) -> None:
    """Fill ``assigned`` (m,) for all sets that have stored rows."""
    from sklearn.neighbors import NearestNeighbors  # type: ignore[import-untyped]

    for group in range(len(offsets) - 1):
        rows = slice(offsets[group], offsets[group + 1])
        count = rows.stop - rows.start
        if count == 0:
            continue
        model = NearestNeighbors(n_neighbors=min(settings.neighbors, count), metric=settings.metric).fit(stored[rows])
        # One query at a time: a product with many queries rounds differently, which can decide between equal distances.
        for query in range(query_offsets[group], query_offsets[group + 1]):
            nearest = model.kneighbors(queries[query : query + 1], return_distance=False)[0]
            candidates, votes = np.unique(labels[rows][nearest], return_counts=True)
            assigned[query] = candidates[votes.argmax()]


# ── the cluster of an equal row ──


def _find_equal(
    queries: FloatArray,
    query_offsets: Offsets,
    stored: FloatArray,
    offsets: Offsets,
    labels: Labels,
    assigned: Labels,
) -> None:
    """Fill ``assigned`` (m,) for all sets that have stored rows; NOISE if no stored row is equal."""
    for (first, last), (start, stop) in zip(pairwise(query_offsets), pairwise(offsets), strict=True):
        known = {stored[row].tobytes(): labels[row] for row in range(start, stop)}
        for query in range(first, last) if known else ():
            assigned[query] = known.get(queries[query].tobytes(), NOISE)
