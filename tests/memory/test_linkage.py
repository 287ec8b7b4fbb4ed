"""The compiled HDBSCAN against the hdbscan package, and what it promises where that one promises nothing."""

import hdbscan
import numpy as np
import pytest
from hdbscan._hdbscan_linkage import label, mst_linkage_core
from hdbscan.hdbscan_ import _tree_to_labels
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from meds_openrlhf.memory import linkage

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.integers(0, 60)
SMALLEST = st.sampled_from([2, 3, 5])
EPSILONS = st.sampled_from([0.0, 1e-9, 0.05, 0.3, 1.0, 3.0])


def random_rows(generator: np.random.Generator, count: int) -> np.ndarray:
    """A few loose groups, and scatter."""
    centres = generator.normal(size=(3, 6))
    spread = generator.choice([0.05, 1.0])
    return centres[generator.integers(3, size=count)] + spread * generator.normal(size=(count, 6))


def repeated_rows(generator: np.random.Generator, count: int) -> np.ndarray:
    distinct = random_rows(generator, int(generator.integers(1, 12)))
    return distinct[generator.integers(len(distinct), size=count)]


def nearly_tied_rows(generator: np.random.Generator, count: int) -> np.ndarray:
    return tied_rows(generator, count) + 1e-9 * generator.normal(size=(count, 3))


def tied_rows(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, 3, size=(count, 3)).astype(np.float64)


def compiled(points: np.ndarray, smallest: int = 2, single: bool = False, epsilon: float = 0.0) -> np.ndarray:
    return linkage.cluster_sets(points, np.array([0, len(points)]), smallest, single, np.array([epsilon]))


def by_hdbscan(points: np.ndarray, smallest: int, single: bool, epsilon: float) -> np.ndarray:
    if len(points) < 2:
        return np.full(len(points), -1)
    model = hdbscan.HDBSCAN(
        min_cluster_size=smallest,
        min_samples=1,
        metric="precomputed",
        algorithm="generic",
        approx_min_span_tree=False,
        allow_single_cluster=single,
        cluster_selection_epsilon=epsilon,
    )
    return model.fit(cdist(points, points)).labels_


def by_hdbscan_with_a_stable_sort(points: np.ndarray, smallest: int, single: bool, epsilon: float) -> np.ndarray:
    """hdbscan's own steps; it sorts edges with whatever numpy has for the machine, which leaves ties to chance."""
    if len(points) < 2:
        return np.full(len(points), -1)
    edges = mst_linkage_core(cdist(points, points))
    tree = label(edges[np.argsort(edges[:, 2], kind="stable")])
    return _tree_to_labels(points, tree, smallest, allow_single_cluster=single, cluster_selection_epsilon=epsilon)[0]


@settings(max_examples=250)
@given(st.sampled_from([random_rows, repeated_rows, nearly_tied_rows]), SEEDS, SIZES, SMALLEST, st.booleans(), EPSILONS)
def test_labels_are_hdbscans(rows, seed: int, count: int, smallest: int, single: bool, epsilon: float) -> None:
    points = rows(np.random.default_rng(seed), count)
    expected = by_hdbscan(points, smallest, single, epsilon)
    np.testing.assert_array_equal(compiled(points, smallest, single, epsilon), expected)


@settings(max_examples=250)
@example(206, 8, 2, True, 2.0)  # a cluster split off at exactly epsilon
@given(SEEDS, SIZES, SMALLEST, st.booleans(), st.sampled_from([0.0, 0.5, 1.0, 1.2, 2.0]))
def test_tied_distances_are_taken_first_row_first(
    seed: int, count: int, smallest: int, single: bool, epsilon: float
) -> None:
    points = tied_rows(np.random.default_rng(seed), count)
    expected = by_hdbscan_with_a_stable_sort(points, smallest, single, epsilon)
    np.testing.assert_array_equal(compiled(points, smallest, single, epsilon), expected)


@given(
    st.lists(st.tuples(st.sampled_from([random_rows, repeated_rows, tied_rows]), SEEDS, SIZES), max_size=6),
    SMALLEST,
    st.booleans(),
    st.sampled_from([0.0, 0.3, np.nan]),
)
def test_other_sets_of_the_call_do_not_matter(drawn, smallest: int, single: bool, epsilon: float) -> None:
    sets = [np.pad(rows(np.random.default_rng(seed), count), ((0, 0), (0, 6)))[:, :6] for rows, seed, count in drawn]
    offsets = np.cumsum([0, *map(len, sets)])
    together = linkage.cluster_sets(
        np.concatenate([np.empty((0, 6)), *sets]), offsets, smallest, single, np.full(len(sets), epsilon)
    )
    alone = [compiled(points, smallest, single, epsilon) for points in sets]
    np.testing.assert_array_equal(together, np.concatenate([np.empty(0), *alone]))


def test_each_set_has_its_own_epsilon() -> None:
    points = np.array([[0.0], [0.1], [1.0], [1.1], [9.0], [9.1]])
    labels = linkage.cluster_sets(
        np.concatenate([points, points]), np.array([0, 6, 12]), 2, False, np.array([0.0, 2.0])
    )
    np.testing.assert_array_equal(labels, [1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 1, 1])


def test_stability_is_summed_in_single_precision() -> None:
    parent, first_child = np.array([0, 0, 0]), np.array([1, 0, 0])
    stability = np.array([2.0, 1.0, 1.00000001])  # the children's sum rounds to 2, which is no more than the parent's
    np.testing.assert_array_equal(linkage._excess_of_mass(parent, first_child, stability, True), [True, False, False])
    stability = np.array([2.0, 1.0, 1.000001])
    np.testing.assert_array_equal(linkage._excess_of_mass(parent, first_child, stability, True), [False, True, True])


def test_distances_that_overflow_or_vanish_are_no_error() -> None:
    assert set(compiled(np.array([[1e200], [-1e200], [1e-200], [2e-200], [0.0]]))) <= {-1, 0, 1}


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
        ([0.0, 0.0, 0.0, 0.0, 0.01, 0.02], 0.02),  # one answer word for word, and its variants
        ([0.0, 0.0, 0.01, 0.01, 1.0, 1.0, 1.01, 1.01], 0.02),  # several, but plainly in two groups
    ],
)
def test_the_automatic_epsilon(positions: list[float], expected: float) -> None:
    ends = np.arange(len(positions))  # on a line the spanning tree joins neighbours
    left, right, heights, _ = linkage._single_linkage(ends[:-1], ends[1:], np.diff(positions))
    assert linkage.automatic_epsilon(left, right, heights, 0.45) == pytest.approx(expected)


def test_rows_exactly_as_far_as_the_bound_count() -> None:
    ends = np.arange(4)
    left, right, heights, _ = linkage._single_linkage(ends[:-1], ends[1:], np.array([2**-6, 0.5, 0.5]))
    assert linkage.automatic_epsilon(left, right, heights, 0.5) == 0.5  # else twice 2**-6


def test_the_automatic_epsilon_is_the_one_that_clusters() -> None:
    points = np.array([[0.0], [0.01], [0.03], [0.05], [1.0], [1.02], [1.04]])
    np.testing.assert_array_equal(compiled(points, 2, True, np.nan), compiled(points, 2, True, 0.04))
    assert len(set(compiled(points, 2, True, np.nan))) == 2


def test_scatter_is_dropped_and_labels_close_ranks() -> None:
    labels = np.array([0, 0, 1, 1, 1, 2, 2, -1], dtype=np.int32)
    lambdas = np.array([1.0, 1.0, 9.0, 9.0, 1.0, np.inf, 4.0, 9.0])
    linkage.drop_scatter(labels, lambdas, 0.25, 2)
    np.testing.assert_array_equal(labels, [-1, -1, 0, 0, -1, 1, 1, -1])


def test_a_cluster_that_keeps_too_few_rows_is_dissolved() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1], dtype=np.int32)
    linkage.drop_scatter(labels, np.array([9.0, 9.0, 1.0, 9.0, 9.0, 9.0]), 0.25, 3)
    np.testing.assert_array_equal(labels, [-1, -1, -1, 0, 0, 0])


def test_what_is_far_grows_with_the_rows() -> None:
    points = np.array([[3.0, 4.0], [0.0, 5.0]])
    assert linkage.farthest_distance(points) == pytest.approx(5 * linkage.FARTHEST)
    assert linkage.farthest_distance(points / 5) == pytest.approx(linkage.FARTHEST)


def test_where_half_of_the_rows_have_copies_each_repeated_row_stays_a_cluster() -> None:
    """Rows 0 and 1 are equal, and 2 and 3, at a distance of 1; four single rows join one after the other."""
    left = np.array([0, 2, 8, 10, 11, 12, 13])
    right = np.array([1, 3, 9, 4, 5, 6, 7])
    heights = np.array([0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    assert linkage.automatic_epsilon(left, right, heights, 10.0) == 0.0
    further = np.array([0.0, 0.0, 5.0, 5.0, 5.0, 5.0, 5.0])  # epsilon is the limit, and would not join the two
    assert linkage.automatic_epsilon(left, right, further, 4.0) == 4.0
