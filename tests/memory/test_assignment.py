"""The vote of the nearest neighbours, held against plain code, one query at a time."""

from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meds_openrlhf.memory.assignment import UNASSIGNED, Assignment, assign_sets, sizes_of
from tests.memory.reference import ReferenceMemory

SETS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 9]), st.integers(0, 4)), max_size=5)  # stored rows, queries
NEIGHBORS = st.sampled_from([1, 3, 5])
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


def some_sets(shape: list[tuple[int, int]], seed: int, dims: int = 5) -> tuple[np.ndarray, ...]:
    """queries, query_offsets, stored, offsets, labels of sets with so many stored rows and queries each."""
    generator = np.random.default_rng(seed)
    pool = unit(generator.normal(size=(4, dims)))
    stored_counts, query_counts = [stored for stored, _ in shape], [queries for _, queries in shape]
    stored = some_rows(generator, sum(stored_counts), pool)
    labels = generator.integers(-1, 3, len(stored)).astype(np.int32)
    queries = some_rows(generator, sum(query_counts), pool)
    return queries, offsets_of(query_counts), stored, offsets_of(stored_counts), labels


def oracle(query: np.ndarray, stored: np.ndarray, labels: np.ndarray, neighbors: int, metric: str) -> int:
    """The label of one query: sort everything, count votes in a dictionary, let the nearest break ties."""
    if len(stored) == 0:
        return UNASSIGNED
    if metric == "cosine":
        far = [-float(query @ row) / (np.sqrt(row @ row) or 1.0) for row in stored]
    else:
        # One by one, so that equals stay equal; `sum` rounds otherwise from Python 3.12 on.
        far = [reduce(add, (x * x for x in (query - row).tolist())) for row in stored]
    nearest = sorted(range(len(stored)), key=lambda row: (far[row], row))[:neighbors]
    votes: dict[int, int] = {}
    for row in nearest:  # a dictionary keeps the order of first sight
        votes[int(labels[row])] = votes.get(int(labels[row]), 0) + 1
    return max(votes, key=lambda label: votes[label])


@given(SETS, SEEDS, NEIGHBORS, st.sampled_from(["cosine", "euclidean"]))
def test_ties_to_the_nearest_against_brute_force(shape: list, seed: int, neighbors: int, metric: str) -> None:
    queries, query_offsets, stored, offsets, labels = some_sets(shape, seed)
    chosen = Assignment(neighbors=neighbors, metric=metric)
    assigned = assign_sets(queries, query_offsets, stored, offsets, labels, chosen)
    expected = [
        oracle(query, stored[start:stop], labels[start:stop], neighbors, metric)
        for group, (start, stop) in enumerate(pairwise(offsets))
        for query in queries[query_offsets[group] : query_offsets[group + 1]]
    ]
    assert assigned.dtype == np.int32
    np.testing.assert_array_equal(assigned, expected)


@given(st.integers(1, 40), SEEDS)
def test_of_exact_duplicates_the_one_stored_first_is_nearer(copies: int, seed: int) -> None:
    """In the body and in the tail of a vectorised loop, the same row has the same similarity to the last bit."""
    generator = np.random.default_rng(seed)
    row, query = unit(generator.normal(size=(2, 14)))
    labels = np.arange(copies, dtype=np.int32)
    assigned = assign_sets(
        query[None], np.array([0, 1]), np.tile(row, (copies, 1)), np.array([0, copies]), labels, Assignment()
    )
    np.testing.assert_array_equal(assigned, [0])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.sampled_from([1, 3, 5]), SEEDS)
@settings(max_examples=20)
def test_ties_to_the_smallest_against_the_reference(visits: list[int], neighbors: int, seed: int) -> None:
    """A prompt visited again and again: labels and sizes from the reference's own last clustering."""
    generator = np.random.default_rng(seed)
    pool = generator.normal(size=(3, 6))
    memory = ReferenceMemory(neighbors)
    chosen = Assignment(neighbors=neighbors, ties="smallest")
    for count in visits:
        vectors = some_rows(generator, count, pool)
        stored = np.array(memory.vectors.get(("x", False), np.empty((0, 6)))).reshape(-1, 6)
        labels = np.array(memory.labels.get(("x", False), []), dtype=np.int32)
        bounds, query_bounds = np.array([0, len(stored)]), np.array([0, count])
        assigned = assign_sets(unit(vectors), query_bounds, stored, bounds, labels, chosen)
        sizes = sizes_of(assigned, query_bounds, labels, bounds, "cluster")
        expected, expected_sizes = memory.visit("x", False, vectors)
        assert assigned.tolist() == [UNASSIGNED if label is None else label for label in expected]
        assert sizes.tolist() == expected_sizes


@given(SETS, SEEDS, NEIGHBORS, st.sampled_from(["nearest", "smallest"]))
@settings(max_examples=30)
def test_sets_do_not_see_each_other(shape: list, seed: int, neighbors: int, ties: str) -> None:
    queries, query_offsets, stored, offsets, labels = some_sets(shape, seed)
    chosen = Assignment(neighbors=neighbors, ties=ties)
    together = assign_sets(queries, query_offsets, stored, offsets, labels, chosen)
    sizes = sizes_of(together, query_offsets, labels, offsets, "cluster")
    for group in range(len(shape)):
        asked, rows = slice(*query_offsets[group : group + 2]), slice(*offsets[group : group + 2])
        query_bounds, bounds = np.array([0, len(queries[asked])]), np.array([0, len(stored[rows])])
        alone = assign_sets(queries[asked], query_bounds, stored[rows], bounds, labels[rows], chosen)
        np.testing.assert_array_equal(together[asked], alone)
        np.testing.assert_array_equal(sizes[asked], sizes_of(alone, query_bounds, labels[rows], bounds, "cluster"))


def vote(query: list[float], stored: list[list[float]], labels: list[int], **chosen: object) -> int:
    """The label of one query in one set."""
    return int(
        assign_sets(
            np.array([query]), np.array([0, 1]), np.array(stored).reshape(-1, len(query)), np.array([0, len(labels)]),
            np.array(labels, dtype=np.int32), Assignment(**chosen),
        )[0]
    )  # fmt: skip


QUARTER = [[1.0, 0.0], [0.96, 0.28], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]]  # ever farther from [1, 0]


@pytest.mark.parametrize("ties", ["nearest", "smallest"])
def test_the_majority_wins_and_noise_votes(ties: str) -> None:
    assert vote([1.0, 0.0], QUARTER, [0, 1, 1, 2, 2], ties=ties) == 1
    assert vote([1.0, 0.0], QUARTER, [0, -1, -1, 2, 2], ties=ties) == -1
    assert vote([1.0, 0.0], QUARTER, [0, 1, 1, 2, 2], ties=ties, neighbors=1) == 0
    assert vote([1.0, 0.0], QUARTER[:2], [4, 4], ties=ties) == 4
    assert vote([1.0, 0.0], QUARTER[:1], [7], ties=ties) == 7
    assert vote([1.0, 0.0], [], [], ties=ties) == UNASSIGNED


def test_who_wins_a_tie() -> None:
    assert vote([1.0, 0.0], QUARTER, [5, 3, -1, 0, 0], ties="nearest") == 5
    assert vote([1.0, 0.0], QUARTER, [5, 3, -1, 0, 0], ties="smallest") == -1
    # 2 and 1 have two votes each: the nearest of those four counts, not the nearest of all
    assert vote([1.0, 0.0], QUARTER, [9, 2, 1, 1, 2], ties="nearest", neighbors=5) == 2
    assert vote([1.0, 0.0], QUARTER, [9, 2, 1, 1, 2], ties="smallest", neighbors=5) == 1
    assert vote([1.0, 0.0], QUARTER[:2], [6, 2], ties="nearest") == 6


@pytest.mark.parametrize("ties", ["nearest", "smallest"])
def test_a_zero_vector_is_similar_to_nothing(ties: str) -> None:
    assert vote([1.0, 0.0], [[0.0, 0.0], [0.8, 0.6], [-1.0, 0.0]], [0, 1, 2], ties=ties, neighbors=1) == 1
    assert vote([1.0, 0.0], [[-1.0, 0.0], [0.0, 0.0]], [0, 1], ties=ties, neighbors=1) == 1
    assert vote([0.0, 0.0], [[1.0, 0.0], [0.8, 0.6]], [4, 4], ties=ties) == 4


@pytest.mark.parametrize("ties", ["nearest", "smallest"])
def test_only_the_euclidean_metric_knows_lengths(ties: str) -> None:
    stored = [[0.0, 8.0], [6.0, 8.0], [0.0, 1.0]]
    assert vote([0.6, 0.8], stored, [0, 1, 2], neighbors=1, ties=ties) == 1
    assert vote([6.0, 8.0], stored, [0, 1, 2], neighbors=1, ties=ties) == 1
    assert vote([0.6, 0.8], stored, [0, 1, 2], neighbors=1, ties=ties, metric="euclidean") == 2


def test_sizes_count_stored_rows_of_the_same_set() -> None:
    labels = np.array([0, 0, 1, -1, -1, 0], dtype=np.int32)
    offsets, query_offsets = np.array([0, 5, 6, 6]), np.array([0, 4, 5, 6])
    assigned = np.array([0, 1, -1, 2, 0, UNASSIGNED], dtype=np.int32)
    np.testing.assert_array_equal(sizes_of(assigned, query_offsets, labels, offsets, "none"), [2, 1, 0, 0, 1, 0])
    counted = sizes_of(assigned, query_offsets, labels, offsets, "cluster")
    np.testing.assert_array_equal(counted, [2, 1, 2, 0, 1, 0])
    assert counted.dtype == np.int32


def test_a_read_only_array_is_accepted() -> None:
    sets = some_sets([(9, 2)], seed=1)
    for array in sets:
        array.flags.writeable = False
    for ties in ("nearest", "smallest"):
        assigned = assign_sets(*sets, Assignment(ties=ties))
        assert sizes_of(assigned, sets[1], sets[4], sets[3], "cluster").min() >= 1


def test_what_does_not_fit_together_is_refused() -> None:
    queries, query_offsets, stored, offsets, labels = some_sets([(9, 2), (3, 1)], seed=0)
    with pytest.raises(ValueError, match="'joint' is no vote"):
        assign_sets(queries, query_offsets, stored, offsets, labels, Assignment(method="joint"))
    with pytest.raises(ValueError, match=r"in 2 sets do not fit stored .* in 2 sets with 11 labels"):
        assign_sets(queries, query_offsets, stored, offsets, labels[1:], Assignment())
    with pytest.raises(ValueError, match="do not fit"):
        assign_sets(queries, query_offsets, stored, np.array([0, 12]), labels, Assignment())
    with pytest.raises(ValueError, match="must rise from 0 to the number of rows, 12"):
        assign_sets(queries, query_offsets, stored, offsets + 1, labels, Assignment())
    with pytest.raises(ValueError, match="must rise from 0"):
        sizes_of(labels, np.array([0, 8, 3, 12]), labels, np.array([0, 4, 8, 12]), "none")
