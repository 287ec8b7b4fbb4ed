"""The vote of the nearest neighbours, held against plain code, one query at a time."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meds_openrlhf.config.method import Method
from meds_openrlhf.memory.assignment import UNASSIGNED, Sets, _sizes_of, assign, vote
from tests.memory.reference import ReferenceMemory

SETS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 9]), st.integers(0, 4)), max_size=5)  # stored rows, queries
SEEDS = st.integers(0, 10**6)


def unit(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def offsets_of(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def some_rows(generator: np.random.Generator, count: int, pool: np.ndarray) -> np.ndarray:
    """``count`` rows: many repeats out of ``pool``, some of their own, some twice as long, some zero."""
    rows = pool[generator.integers(len(pool), size=count)].copy()
    fresh = generator.random(count) < 0.3
    rows[fresh] = unit(generator.normal(size=(int(fresh.sum()), pool.shape[1])))
    rows[generator.random(count) < 0.2] *= 2.0
    rows[generator.random(count) < 0.1] = 0.0
    return rows


def some_sets(shape: list[tuple[int, int]], seed: int, dims: int = 5) -> Sets:
    """Sets with so many stored and new rows each."""
    generator = np.random.default_rng(seed)
    pool = unit(generator.normal(size=(4, dims)))
    stored_counts, query_counts = [stored for stored, _ in shape], [queries for _, queries in shape]
    stored = some_rows(generator, sum(stored_counts), pool)
    labels = generator.integers(-1, 3, len(stored)).astype(np.int32)
    queries = some_rows(generator, sum(query_counts), pool)
    return Sets(queries, offsets_of(query_counts), stored, offsets_of(stored_counts), labels)


def oracle(query: np.ndarray, stored: np.ndarray, labels: np.ndarray) -> int:
    """The label of one query: sort everything, count votes in a dictionary, let the nearest break ties."""
    if len(stored) == 0:
        return UNASSIGNED
    far = [-float(query @ row) / (np.sqrt(row @ row) or 1.0) for row in stored]
    nearest = sorted(range(len(stored)), key=lambda row: (far[row], row))[:3]
    votes: dict[int, int] = {}
    for row in nearest:  # a dictionary keeps the order of first sight
        votes[int(labels[row])] = votes.get(int(labels[row]), 0) + 1
    return max(votes, key=lambda label: votes[label])


@given(SETS, SEEDS)
def test_ties_to_the_nearest_against_brute_force(shape: list, seed: int) -> None:
    sets = some_sets(shape, seed)
    assigned = vote(sets, Method())
    expected = [
        oracle(query, sets.stored[start:stop], sets.labels[start:stop])
        for group, (start, stop) in enumerate(pairwise(sets.offsets))
        for query in sets.new[sets.new_offsets[group] : sets.new_offsets[group + 1]]
    ]
    assert assigned.dtype == np.int32
    np.testing.assert_array_equal(assigned, expected)


@given(st.integers(1, 40), SEEDS)
def test_of_exact_duplicates_the_one_stored_first_is_nearer(copies: int, seed: int) -> None:
    """In the body and in the tail of a vectorised loop, the same row has the same similarity to the last bit."""
    generator = np.random.default_rng(seed)
    row, query = unit(generator.normal(size=(2, 14)))
    labels = np.arange(copies, dtype=np.int32)
    sets = Sets(query[None], np.array([0, 1]), np.tile(row, (copies, 1)), np.array([0, copies]), labels)
    assigned = vote(sets, Method())
    np.testing.assert_array_equal(assigned, [0])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), SEEDS)
@settings(max_examples=20)
def test_ties_to_the_smallest_against_the_reference(visits: list[int], seed: int) -> None:
    """A prompt visited again and again: labels and sizes from the reference's own last clustering."""
    generator = np.random.default_rng(seed)
    pool = generator.normal(size=(3, 6))
    memory = ReferenceMemory()
    for count in visits:
        vectors = some_rows(generator, count, pool)
        stored = np.array(memory.vectors.get(("x", False), np.empty((0, 6)))).reshape(-1, 6)
        labels = np.array(memory.labels.get(("x", False), []), dtype=np.int32)
        sets = Sets(unit(vectors), np.array([0, count]), stored, np.array([0, len(stored)]), labels)
        assigned, sizes = assign(sets, Method(ties="smallest", noise="cluster"))
        expected, expected_sizes = memory.visit("x", False, vectors)
        assert assigned.tolist() == [UNASSIGNED if label is None else label for label in expected]
        assert sizes.tolist() == expected_sizes


@given(SETS, SEEDS, st.sampled_from(["nearest", "smallest"]))
@settings(max_examples=30)
def test_sets_do_not_see_each_other(shape: list, seed: int, ties: str) -> None:
    sets, method = some_sets(shape, seed), Method(ties=ties, noise="cluster")
    for array in sets:
        array.flags.writeable = False  # which is accepted
    together, sizes = assign(sets, method)
    for group in range(len(shape)):
        asked, rows = slice(*sets.new_offsets[group : group + 2]), slice(*sets.offsets[group : group + 2])
        new, stored = sets.new[asked], sets.stored[rows]
        one = Sets(new, np.array([0, len(new)]), stored, np.array([0, len(stored)]), sets.labels[rows])
        alone, alone_sizes = assign(one, method)
        np.testing.assert_array_equal(together[asked], alone)
        np.testing.assert_array_equal(sizes[asked], alone_sizes)


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
    assert vote(sets, Method(ties=ties)).tolist() == [expected]


def test_sizes_count_stored_rows_of_the_same_set() -> None:
    labels = np.array([0, 0, 1, -1, -1, 0], dtype=np.int32)
    offsets, new_offsets = np.array([0, 5, 6, 6]), np.array([0, 4, 5, 6])
    assigned = np.array([0, 1, -1, 2, 0, UNASSIGNED], dtype=np.int32)
    np.testing.assert_array_equal(_sizes_of(assigned, new_offsets, labels, offsets, 0), [2, 1, 0, 0, 1, 0])
    counted = _sizes_of(assigned, new_offsets, labels, offsets, -1)
    np.testing.assert_array_equal(counted, [2, 1, 2, 0, 1, 0])
    assert counted.dtype == np.int32


def test_what_does_not_fit_together_is_refused() -> None:
    sets = some_sets([(9, 2), (3, 1)], seed=0)
    with pytest.raises(ValueError, match=r"in 2 sets do not fit stored .* in 2 sets with 11 labels"):
        vote(sets._replace(labels=sets.labels[1:]), Method())
    with pytest.raises(ValueError, match="do not fit"):
        vote(sets._replace(offsets=np.array([0, 12])), Method())
    with pytest.raises(ValueError, match="must rise from 0 to the number of rows, 12"):
        vote(sets._replace(offsets=sets.offsets + 1), Method())


def test_an_equal_row_of_the_set_gives_its_label() -> None:
    stored, offsets = np.array([[1.0, 2], [3, 4], [1, 2]]), np.array([0, 3, 3])
    new, labels = np.array([[3.0, 4], [3, 5], [1, 2]]), np.array([0, 1, 0], np.int32)
    sets = Sets(new, np.array([0, 2, 3]), stored, offsets, labels)
    assert vote(sets, Method(algorithm="equal")).tolist() == [1, -1, UNASSIGNED]  # the second set holds nothing yet
