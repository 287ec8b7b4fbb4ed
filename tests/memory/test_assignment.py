"""The vote of the nearest neighbors against plain code, one query at a time; test_replay.py has the reference's."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.config.method import ClusteringMethod
from meds_openrlhf.memory.assignment import assign, vote
from meds_openrlhf.memory.sets import UNASSIGNED, Sets

SETS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 9]), st.integers(0, 4)), max_size=5)  # stored rows, queries
SEEDS = st.integers(0, 10**6)


def some_rows(generator: np.random.Generator, count: int, pool: np.ndarray) -> np.ndarray:
    """``count`` rows: many repeats out of ``pool``, some of their own, some twice as long, some zero."""
    rows = pool[generator.integers(len(pool), size=count)].copy()
    fresh = generator.random(count) < 0.3
    rows[fresh] = generator.normal(size=(int(fresh.sum()), pool.shape[1]))
    rows[generator.random(count) < 0.2] *= 2.0
    rows[generator.random(count) < 0.1] = 0.0
    return rows


def some_sets(shape: list[tuple[int, int]], seed: int, dims: int = 5) -> Sets:
    """Sets with so many stored and new rows each."""
    generator = np.random.default_rng(seed)
    pool = generator.normal(size=(4, dims))
    offsets, new_offsets = np.cumsum([(0, 0), *shape], axis=0).T
    stored, queries = (some_rows(generator, bounds[-1], pool) for bounds in (offsets, new_offsets))
    labels = generator.integers(-1, 3, len(stored)).astype(np.int32)
    return Sets(queries, np.ascontiguousarray(new_offsets), stored, np.ascontiguousarray(offsets), labels)


def oracle(query: np.ndarray, stored: np.ndarray, labels: list[int]) -> int:
    """The label of one query: sort everything, count votes in a dictionary, let the nearest break ties."""
    if len(stored) == 0:
        return UNASSIGNED
    far = [-float(query @ row) / (np.sqrt(row @ row) or 1.0) for row in stored]
    nearest = sorted(range(len(stored)), key=lambda row: (far[row], row))[:3]
    votes: dict[int, int] = {}
    for row in nearest:  # a dictionary keeps the order of first sight
        votes[labels[row]] = votes.get(labels[row], 0) + 1
    return max(votes, key=lambda label: votes[label])


@given(SETS, SEEDS, st.sampled_from(["none", "cluster"]))
def test_ties_to_the_nearest_against_brute_force(shape: list, seed: int, noise: str) -> None:
    """Labels and sizes of every set, whatever the others hold."""
    sets = some_sets(shape, seed)
    assigned, sizes = assign(sets, ClusteringMethod(noise=noise))
    expected, counts = [], []
    for (first, last), (start, stop) in zip(pairwise(sets.new_offsets), pairwise(sets.offsets)):
        labels = sets.labels[start:stop].tolist()
        for query in sets.new[first:last]:
            label = oracle(query, sets.stored[start:stop], labels)
            expected.append(label)
            counts.append(labels.count(label) if label >= 0 or noise == "cluster" else 0)
    assert assigned.dtype == sizes.dtype == np.int32
    assert (assigned.tolist(), sizes.tolist()) == (expected, counts)


@given(st.integers(1, 40), SEEDS)
def test_of_exact_duplicates_the_one_stored_first_is_nearer(copies: int, seed: int) -> None:
    """In the body and in the tail of a vectorized loop, the same row has the same similarity to the last bit."""
    generator = np.random.default_rng(seed)
    row, query = generator.normal(size=(2, 14))
    labels = np.arange(copies, dtype=np.int32)
    sets = Sets(query[None], np.array([0, 1]), np.tile(row, (copies, 1)), np.array([0, copies]), labels)
    assigned = vote(sets, ClusteringMethod())
    np.testing.assert_array_equal(assigned, [0])


@pytest.mark.parametrize("ties", ["nearest", "smallest"])
@pytest.mark.parametrize(
    ("query", "stored", "labels", "expected"),
    [  # A zero vector is farther than rows at a right angle or less, and nearer than those that point away.
        ([1.0, 0.0], [[0.0, 0.0], [0.8, 0.6], [0.9, 0.1], [-1.0, 0.0], [0.7, 0.1]], [0, 1, 1, 0, 0], 1),
        ([1.0, 0.0], [[-1.0, 0.0], [0.0, 0.0], [-0.9, 0.1], [0.0, 0.0]], [0, 1, 0, 1], 1),
        ([0.0, 0.0], [[1.0, 0.0], [0.8, 0.6]], [4, 4], 4),
        ([1.0, 0.0], [[1.0, 0.0], [0.96, 0.28], [0.8, 0.6], [0.6, 0.8]], [0, -1, -1, 2], -1),  # noise votes
    ],
)
def test_the_nearest_three_vote(query: list, stored: list, labels: list[int], expected: int, ties: str) -> None:
    count = len(stored)
    sets = Sets(np.array([query]), np.array([0, 1]), np.array(stored), np.array([0, count]), np.array(labels, np.int32))
    assert vote(sets, ClusteringMethod(ties=ties)).tolist() == [expected]


def test_of_three_labels_the_nearest_or_the_smallest_wins() -> None:
    stored = np.array([[1.0, 0.0], [0.96, 0.28], [0.8, 0.6]])
    sets = Sets(stored[:1], np.array([0, 1]), stored, np.array([0, 3]), np.array([2, 1, 0], np.int32))
    assert [vote(sets, ClusteringMethod(ties=ties)).tolist() for ties in ("nearest", "smallest")] == [[2], [0]]


def test_equal_rows_are_found_also_where_zero_has_a_sign() -> None:
    stored = np.array([[0.0, 1.0], [2.0, 1.0]], np.float32)
    query = np.array([[-0.0, 1.0], [2.0, 1.0], [1.0, 0.5]], np.float32)  # the last has a stored row's direction
    sets = Sets(query, np.array([0, 3]), stored, np.array([0, 2]), np.array([0, 1], np.int32))
    assert vote(sets, ClusteringMethod(algorithm="equal")).tolist() == [0, 1, -1]
