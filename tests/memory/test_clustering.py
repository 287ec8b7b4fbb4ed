"""Clustering and assignment on sets whose structure is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.memory.clustering import Clustering, assign, cluster

PAPER = Clustering()


def blobs(sizes: list[int], seed: int = 0) -> np.ndarray:
    """Unit vectors around as many orthogonal directions as there are sizes."""
    generator = np.random.default_rng(seed)
    centres = np.eye(8)[: len(sizes)]
    points = np.concatenate([centre + 0.05 * generator.normal(size=(n, 8)) for centre, n in zip(centres, sizes)])
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def test_two_blobs_are_told_apart() -> None:
    labels = cluster(blobs([12, 9]), Clustering(min_cluster_size=5))
    first, second = set(labels[:12]) - {-1}, set(labels[12:]) - {-1}
    assert len(first) == len(second) == 1
    assert first != second


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_fewer_than_four_are_noise_under_the_papers_setting(count: int) -> None:
    np.testing.assert_array_equal(cluster(blobs([count]), PAPER), [-1] * count)


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        cluster(np.array([[np.nan, 1.0]] * 4), PAPER)


def test_a_read_only_array_is_accepted() -> None:
    points = blobs([6, 6])
    points.flags.writeable = False
    assert cluster(points, PAPER).dtype == np.int32


def test_the_majority_of_the_nearest_wins() -> None:
    stored = np.array([[1.0, 0.0], [0.9, 0.436], [0.8, 0.6], [0.0, 1.0]])
    labels = np.array([0, 1, 1, 2], dtype=np.int32)
    np.testing.assert_array_equal(assign(np.array([[1.0, 0.0], [0.0, 1.0]]), stored, labels), [1, 1])
    np.testing.assert_array_equal(assign(np.array([[1.0, 0.0]]), stored, labels, neighbors=1), [0])


def test_a_tie_goes_to_the_nearest() -> None:
    stored = np.array([[0.8, 0.6], [1.0, 0.0], [0.0, 1.0]])
    labels = np.array([0, 5, 7], dtype=np.int32)
    np.testing.assert_array_equal(assign(np.array([[1.0, 0.0]]), stored, labels), [5])


def test_noise_votes_and_can_win() -> None:
    stored = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(assign(np.array([[1.0, 0.0]]), stored, np.array([-1, -1, 0], dtype=np.int32)), [-1])


def test_nothing_stored_is_noise() -> None:
    np.testing.assert_array_equal(assign(np.ones((2, 3)), np.empty((0, 3)), np.empty(0, dtype=np.int32)), [-1, -1])


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 12), st.integers(1, 5))
def test_assignment_equals_one_vector_at_a_time(seed: int, stored_count: int, queries: int, neighbors: int) -> None:
    generator = np.random.default_rng(seed)
    stored, asked = generator.normal(size=(stored_count, 6)), generator.normal(size=(queries, 6))
    stored[generator.integers(stored_count)] = stored[0]  # duplicates are the normal case
    stored, asked = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (stored, asked))
    labels = generator.integers(-1, 3, stored_count).astype(np.int32)
    together = assign(asked, stored, labels, neighbors)
    one_by_one = [assign(query[None], stored, labels, neighbors)[0] for query in asked]
    np.testing.assert_array_equal(together, one_by_one)
