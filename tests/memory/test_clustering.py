"""Clustering on sets whose structure is known."""

from dataclasses import replace

import hdbscan
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meds_openrlhf.memory.clustering import (
    Clustering,
    _automatic_distances,
    _cluster_by_hdbscan,
    cluster,
    cluster_sets,
    sizes_in_batch,
)

PAPER = Clustering()
ROBUST = Clustering(allow_single_cluster=True, selection_epsilon="auto")
REFERENCE = Clustering(exact=False)


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


def modes(sizes: list[int], apart: float, spread: float, seed: int = 0) -> np.ndarray:
    """Unit vectors (n, 14) around as many centres as there are sizes, each ``apart`` from the others."""
    generator = np.random.default_rng(seed)
    directions = np.linalg.qr(generator.normal(size=(14, 14)))[0]
    along = apart / np.sqrt(2)
    centres = np.sqrt(1 - along**2) * directions[0] + along * directions[1 : len(sizes) + 1]
    points = np.repeat(centres, sizes, axis=0) + spread * generator.normal(size=(sum(sizes), 14))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def directions(count: int, seed: int = 0) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, 14))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.mark.parametrize("apart", [0.01, 0.13, 1.0])
@pytest.mark.parametrize("looseness", [0.02, 0.05])
@pytest.mark.parametrize("sizes", [[8], [48], [24, 24], [44, 4], [16, 16, 16], [8] * 6])
def test_the_robust_preset_finds_each_mode_whole_at_every_scale(
    sizes: list[int], looseness: float, apart: float
) -> None:
    labels = cluster(modes(sizes, apart, looseness * apart), ROBUST)
    np.testing.assert_array_equal(labels.min(), 0)
    assert labels.max() == len(sizes) - 1
    for mode in np.split(labels, np.cumsum(sizes)[:-1]):
        assert len(set(mode)) == 1


def test_the_papers_setting_breaks_one_mode_up() -> None:
    assert cluster(modes([48], 0.13, 0.01), PAPER).max() > 0


@pytest.mark.parametrize("count", [2, 8, 48])
def test_identical_rows_are_one_robust_cluster(count: int) -> None:
    np.testing.assert_array_equal(cluster(np.ones((count, 14)), ROBUST), [0] * count)


def test_random_directions_are_noise_to_the_robust_preset() -> None:
    assert (cluster(directions(60), ROBUST) == -1).mean() > 0.9


@pytest.mark.parametrize("scatter", [10, 30])
@pytest.mark.parametrize("sizes", [[40], [20, 20]])
def test_scatter_beside_modes_is_noise_to_the_robust_preset(sizes: list[int], scatter: int) -> None:
    labels = cluster(np.concatenate([modes(sizes, 0.13, 0.01), directions(scatter)]), ROBUST)
    assert (labels[:40] >= 0).all()
    np.testing.assert_array_equal(labels[40:], [-1] * scatter)
    assert labels.max() == len(sizes) - 1


@pytest.mark.parametrize("rare", [0, 4, 6])
def test_answers_word_for_word_stay_apart(rare: int) -> None:
    points = modes([1] * (3 + rare), 0.13, 0.0)
    labels = cluster(np.concatenate([np.repeat(points[:3], 16, axis=0), points[3:]]), ROBUST)
    repeated = labels[:48].reshape(3, 16)
    assert (repeated == repeated[:, :1]).all()
    assert len(set(repeated[:, 0])) == 3


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([0.02, 0.1, 0.5]))
def test_both_paths_have_one_automatic_rule(seed: int, count: int, spread: float) -> None:
    points = np.concatenate([modes([count, count // 2], 0.5, spread, seed), directions(4, seed)])
    points[count // 2 : count // 2 + 3] = points[0]
    np.testing.assert_array_equal(cluster(points, ROBUST), _cluster_by_hdbscan(points, ROBUST))


@pytest.mark.parametrize("changes", [{"min_samples": 3}, {"metric": "cosine"}, {"exact": False}])
def test_the_automatic_rule_goes_with_other_settings(changes: dict) -> None:
    robust = Clustering(allow_single_cluster=True, selection_epsilon="auto", **changes)
    labels = cluster(np.concatenate([modes([20, 20], 0.13, 0.01), directions(5)]), robust)
    np.testing.assert_array_equal(np.bincount(labels + 1), [5, 20, 20])


def test_by_cosine_the_automatic_distances_are_half_the_squares_of_those_between_unit_vectors() -> None:
    points = np.concatenate([modes([20, 20], 0.5, 0.1), directions(5)]) * 3
    by_cosine = _automatic_distances(points, replace(ROBUST, metric="cosine"))
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    epsilon, farthest = _automatic_distances(unit, ROBUST)
    assert by_cosine == pytest.approx((epsilon**2 / 2, farthest**2 / 2))
    assert farthest == pytest.approx(0.45)


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_not_exact_is_hdbscan_as_it_comes(metric: str) -> None:
    points = modes([50, 60, 30], 0.13, 0.02)
    expected = hdbscan.HDBSCAN(min_cluster_size=3, min_samples=2, metric=metric).fit(points).labels_
    settings = Clustering(min_cluster_size=3, min_samples=2, metric=metric, exact=False)
    np.testing.assert_array_equal(cluster(points, settings), expected)


@pytest.mark.parametrize(
    ("metric", "min_samples"), [("euclidean", 3), ("manhattan", 1), ("manhattan", 2), ("cosine", 1), ("cosine", 2)]
)
def test_other_settings_are_hdbscans_exact_ones(metric: str, min_samples: int) -> None:
    points = 3 * modes([12, 8, 10], 0.4, 0.03)
    expected = hdbscan.HDBSCAN(
        min_cluster_size=2, min_samples=min_samples, metric=metric, algorithm="generic", approx_min_span_tree=False
    )
    labels = cluster(points, Clustering(metric=metric, min_samples=min_samples))
    np.testing.assert_array_equal(labels, expected.fit(points.copy()).labels_)
    assert labels.max() > 0


@pytest.mark.parametrize("metric", ["euclidean", "manhattan", "cosine"])
def test_copies_are_at_distance_zero_in_every_metric(metric: str) -> None:
    points = np.repeat(directions(3) * 1.7, 6, axis=0)
    np.testing.assert_array_equal(np.bincount(cluster(points, Clustering(metric=metric))), [6, 6, 6])


@pytest.mark.parametrize("settings", [PAPER, ROBUST, REFERENCE, Clustering(min_samples=3)])
def test_sets_are_clustered_as_if_alone(settings: Clustering) -> None:
    sets = [modes([20, 9], 0.13, 0.01), directions(1), np.empty((0, 14)), directions(12), np.ones((5, 14))]
    together = cluster_sets(np.concatenate(sets), np.cumsum([0, *map(len, sets)]), settings)
    np.testing.assert_array_equal(together, np.concatenate([cluster(points, settings) for points in sets]))
    assert together.dtype == np.int32


@pytest.mark.parametrize("offsets", [[], [0], [0, 3], [1, 4], [0, 3, 2, 4]])
def test_offsets_that_do_not_cover_the_rows_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets: must rise from 0 to the number of rows, 4"):
        cluster_sets(directions(4), np.array(offsets, dtype=np.int64), PAPER)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_cluster_size": 1}, "min_cluster_size: 1"),
        ({"min_samples": 0}, "min_samples: 0"),
        ({"metric": "chebyshev"}, "metric: 'chebyshev'"),
        ({"metric": "cosine", "exact": False}, "metric: 'cosine'"),
        ({"selection_epsilon": -0.1}, "selection_epsilon: -0.1"),
        ({"selection_epsilon": float("nan")}, "selection_epsilon: nan"),
        ({"selection_epsilon": "automatic"}, "selection_epsilon: 'automatic'"),
        ({"selection_epsilon": "auto", "metric": "manhattan"}, "selection_epsilon: 'auto'"),
    ],
)
def test_settings_that_hdbscan_does_not_have_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Clustering(**wrong)


@pytest.mark.parametrize("settings", [PAPER, REFERENCE])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(settings: Clustering, value: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        cluster(np.array([[value, 1.0]] * 4), settings)


@pytest.mark.parametrize("settings", [PAPER, REFERENCE, Clustering(metric="cosine")])
def test_a_read_only_array_is_accepted(settings: Clustering) -> None:
    points = blobs([6, 6])
    points.flags.writeable = False
    assert cluster(points, settings).dtype == np.int32


def test_sizes_in_a_batch_count_a_groups_own_rows_and_noise_is_alone() -> None:
    near, wobble, far, single = [1.0, 0, 0, 0], [1.01, 0, 0, 0], [0, 0, 0, 9.0], [0, 50.0, 0, 0]
    features = np.array([near, near, wobble, far, [0, 0, 0, 9.01], single, near])
    codes = np.array([0, 2, 0, 0, 0, 0, 0])
    assert sizes_in_batch(features, codes, Clustering()).tolist() == [3, 1, 3, 2, 2, 1, 3]
    assert sizes_in_batch(features[:0], codes[:0], Clustering()).tolist() == []
