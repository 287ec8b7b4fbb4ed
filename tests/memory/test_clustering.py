"""Clustering on sets whose structure is known, and against the hdbscan package."""

import hdbscan
import numpy as np
import pytest
from hdbscan._hdbscan_linkage import label, mst_linkage_core
from hdbscan.hdbscan_ import _tree_to_labels
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from meds_openrlhf.config.method import PRESETS, ClusteringMethod
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.compiled import (
    _excess_of_mass,
    _single_linkage,
    automatic_epsilon,
    drop_scatter,
    hdbscan_sets,
)

PAPER, ROBUST, REFERENCE = PRESETS["paper"], PRESETS["robust"], PRESETS["reference"]


def cluster(points: np.ndarray, method: ClusteringMethod) -> np.ndarray:
    return cluster_sets(points, np.array([0, len(points)]), method)


def modes(sizes: list[int], apart: float, spread: float, seed: int = 0) -> np.ndarray:
    """Unit vectors (n, 14) around as many centers as there are sizes, each ``apart`` from the others."""
    generator = np.random.default_rng(seed)
    directions = np.linalg.qr(generator.normal(size=(14, 14)))[0]
    along = apart / np.sqrt(2)
    centers = np.sqrt(1 - along**2) * directions[0] + along * directions[1 : len(sizes) + 1]
    points = np.repeat(centers, sizes, axis=0) + spread * generator.normal(size=(sum(sizes), 14))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def directions(count: int, seed: int = 0) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, 14))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.mark.parametrize("apart", [0.01, 0.13, 1.0])
@pytest.mark.parametrize("looseness", [0.02, 0.05])
@pytest.mark.parametrize("sizes", [[8], [48], [24, 24], [44, 4], [16, 16, 16], [8] * 6])
def test_the_robust_preset_finds_modes_whole_at_every_scale(sizes: list[int], looseness: float, apart: float) -> None:
    labels = cluster(modes(sizes, apart, looseness * apart), ROBUST)
    np.testing.assert_array_equal(labels.min(), 0)
    assert labels.max() == len(sizes) - 1
    for mode in np.split(labels, np.cumsum(sizes)[:-1]):
        assert len(set(mode)) == 1


@pytest.mark.parametrize(
    ("points", "method", "labels"),
    [
        *[(directions(count), PAPER, [-1] * count) for count in (0, 1, 2, 3)],  # fewer than four are noise
        *[(np.ones((count, 14)), ROBUST, [0] * count) for count in (2, 8, 48)],
        (np.repeat(np.eye(3) * 1.7, 6, axis=0), PAPER, np.repeat([1, 2, 0], 6)),  # copies are at distance zero
        (np.array([[0.0], [0.01], [0.03], [0.05], [1.0], [1.02], [1.04]]), ROBUST, [0, 0, 0, 0, 1, 1, 1]),
    ],
)
def test_labels_that_are_known(points: np.ndarray, method: ClusteringMethod, labels: list[int]) -> None:
    points.flags.writeable = False  # which is accepted
    np.testing.assert_array_equal(cluster(points, method), labels)


def test_settings_differ() -> None:
    loose = modes([50, 60, 30], 0.13, 0.02)
    expected = hdbscan.HDBSCAN(min_cluster_size=3, min_samples=1).fit(loose).labels_
    np.testing.assert_array_equal(cluster(loose, ClusteringMethod(min_cluster_size=3, algorithm="library")), expected)
    assert cluster(modes([48], 0.13, 0.01), PAPER).max() > 0  # breaks one mode up
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


@pytest.mark.parametrize("settings", [PAPER, ROBUST, REFERENCE, PRESETS["answers"]])
def test_sets_are_clustered_as_if_alone(settings: ClusteringMethod) -> None:
    sets = [modes([20, 9], 0.13, 0.01), directions(1), np.empty((0, 14)), directions(12), np.ones((5, 14))]
    together = cluster_sets(np.concatenate(sets), np.cumsum([0, *map(len, sets)]), settings)
    np.testing.assert_array_equal(together, np.concatenate([cluster(points, settings) for points in sets]))
    assert together.dtype == np.int32


@pytest.mark.parametrize("settings", [PAPER, REFERENCE])
def test_clustering_refuses_infinite_values_and_bad_offsets(settings: ClusteringMethod) -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="NaN or infinite"):
            cluster(np.array([[value, 1.0]] * 4), settings)
    for offsets in ([], [0], [0, 3], [1, 4], [0, 3, 2, 4]):
        with pytest.raises(ValueError, match="offsets: must rise from 0 to the number of rows, 4"):
            cluster_sets(directions(4), np.array(offsets, dtype=np.int64), settings)


# ── the compiled steps ──

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(0, 60)
SMALLEST = st.sampled_from([2, 3, 5])
EPSILONS = st.sampled_from([0.0, 1e-9, 0.05, 0.3, 0.5, 1.0, 1.2, 2.0, 3.0])


def random_rows(generator: np.random.Generator, count: int) -> np.ndarray:
    """A few loose groups, and scatter."""
    centers = generator.normal(size=(3, 6))
    spread = generator.choice([0.05, 1.0])
    return centers[generator.integers(3, size=count)] + spread * generator.normal(size=(count, 6))


def repeated_rows(generator: np.random.Generator, count: int) -> np.ndarray:
    distinct = random_rows(generator, int(generator.integers(1, 12)))
    return distinct[generator.integers(len(distinct), size=count)]


def nearly_tied_rows(generator: np.random.Generator, count: int) -> np.ndarray:
    return tied_rows(generator, count) + 1e-9 * generator.normal(size=(count, 3))


def tied_rows(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, 3, size=(count, 3)).astype(np.float64)


ROWS = st.sampled_from([random_rows, repeated_rows, nearly_tied_rows, tied_rows])


def compiled(points: np.ndarray, smallest: int = 2, single: bool = False, epsilon: float = 0.0) -> np.ndarray:
    return hdbscan_sets(points, np.array([0, len(points)]), smallest, single, epsilon)


def by_hdbscan(points: np.ndarray, smallest: int, single: bool, epsilon: float) -> np.ndarray:
    """hdbscan's own steps, but a stable sort of edges; its own sort leaves ties to chance."""
    if len(points) < 2:
        return np.full(len(points), -1)
    edges = mst_linkage_core(cdist(points, points))
    tree = label(edges[np.argsort(edges[:, 2], kind="stable")])
    return _tree_to_labels(points, tree, smallest, allow_single_cluster=single, cluster_selection_epsilon=epsilon)[0]


@settings(max_examples=400)
@example(tied_rows, 206, 8, 2, True, 2.0)  # a cluster split off at exactly epsilon
@given(ROWS, SEEDS, SIZES, SMALLEST, st.booleans(), EPSILONS)
def test_labels_are_hdbscans(rows, seed: int, count: int, smallest: int, single: bool, epsilon: float) -> None:
    """If distances tie, the first row is taken first."""
    points, single = rows(np.random.default_rng(seed), count), single or epsilon > 0
    expected = by_hdbscan(points, smallest, single, epsilon)
    np.testing.assert_array_equal(compiled(points, smallest, single, epsilon), expected)


def test_stability_is_summed_in_single_precision() -> None:
    parent, first_child = np.array([0, 0, 0]), np.array([1, 0, 0])
    stability = np.array([2.0, 1.0, 1.00000001])  # the children's sum rounds to 2, which is no more than the parent's
    np.testing.assert_array_equal(_excess_of_mass(parent, first_child, stability, True), [True, False, False])
    stability = np.array([2.0, 1.0, 1.000001])
    np.testing.assert_array_equal(_excess_of_mass(parent, first_child, stability, True), [False, True, True])


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([0.0, 0.01, 0.03, 0.05, 1.0, 1.02, 1.04], 0.04),  # twice the upper quartile, whatever the gap
        ([0.0, 0.01, 0.01, 0.03, 0.05, 0.05, 1.0, 1.02, 1.04], 0.04),  # copies count once
        ([0.0, 0.01, 0.03, 0.05, 1.0, 2.0, 3.0, 4.0], 0.04),  # scatter does not count
        ([0.0, 0.3, 0.6, 0.9], 0.45),  # never more than the bound
        ([0.0, 1.0, 2.0, 3.0], 0.45),
        ([0.0, 0.0, 0.0], 0.45),
        ([0.0, 0.0, 0.1, 0.1, 0.2], 0.0),  # answers word for word: nothing tells them from one loose mode
        ([0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.2, 0.3, 0.9], 0.0),  # nor do rare answers beside them
        ([0.0, 0.0, 0.1, 0.1, 0.3, 0.5, 0.7, 0.9], 0.0),  # nor does it matter if half of the rows have no copies
        ([0.0, 0.0, 0.0, 0.0, 0.01, 0.02], 0.02),  # one answer word for word, and its variants
        ([0.0, 0.0, 0.01, 0.01, 1.0, 1.0, 1.01, 1.01], 0.02),  # several, but plainly in two groups
    ],
)
def test_the_automatic_epsilon(positions: list[float], expected: float) -> None:
    ends = np.arange(len(positions))  # on a line the spanning tree joins neighbors
    left, right, heights, _ = _single_linkage(ends[:-1], ends[1:], np.diff(positions))
    assert automatic_epsilon(left, right, heights, 0.45) == pytest.approx(expected)
    left, right, heights, _ = _single_linkage(np.arange(3), np.arange(1, 4), np.array([2**-6, 0.5, 0.5]))
    assert automatic_epsilon(left, right, heights, 0.5) == 0.5  # a distance of exactly the bound counts: else 2**-5


def test_scatter_is_dropped_and_labels_close_ranks() -> None:
    labels = np.array([0, 0, 1, 1, 1, 2, 2, -1], dtype=np.int32)
    lambdas = np.array([1.0, 1.0, 9.0, 9.0, 1.0, np.inf, 4.0, 9.0])
    drop_scatter(labels, lambdas, 0.25, 2)
    np.testing.assert_array_equal(labels, [-1, -1, 0, 0, -1, 1, 1, -1])
    labels = np.array([0, 0, 0, 1, 1, 1], dtype=np.int32)  # the first keeps too few rows
    drop_scatter(labels, np.array([9.0, 9.0, 1.0, 9.0, 9.0, 9.0]), 0.25, 3)
    np.testing.assert_array_equal(labels, [-1, -1, -1, 0, 0, 0])


def test_distances_may_overflow_or_vanish() -> None:
    points = np.concatenate([modes([20, 20], 0.13, 0.01), directions(10)])
    np.testing.assert_array_equal(cluster(64 * points, ROBUST), cluster(points, ROBUST))
    assert set(compiled(np.array([[1e200], [-1e200], [1e-200], [2e-200], [0.0]]))) <= {-1, 0, 1}
