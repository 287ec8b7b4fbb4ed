"""The penalty's formula, by hand and as a law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.shaping.penalty import cluster_penalty


def test_by_hand() -> None:
    penalty = cluster_penalty(
        sizes=np.array([0, 1, 3, 100, 100, 100]),
        labels=np.array([0, 0, 1, 2, -1, 2]),
        correct=np.array([False, False, False, False, False, True]),
        alpha=0.1,
        beta=0.2,
    )
    np.testing.assert_allclose(penalty, [0.0, 0.1 * np.log(2), 0.1 * np.log(4), 0.2, 0.0, 0.0])


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_grows_with_the_cluster_and_stays_within_zero_and_beta(sizes: list[int], alpha: float, beta: float) -> None:
    array = np.sort(np.array(sizes))
    wrong, labels = np.zeros(len(array), dtype=bool), np.zeros(len(array), dtype=int)
    penalty = cluster_penalty(array, labels, wrong, alpha=alpha, beta=beta)
    assert (np.diff(penalty) >= 0).all()
    assert (penalty >= 0).all()
    assert (penalty <= beta).all()


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        cluster_penalty(np.zeros(2, int), np.zeros(3, int), np.zeros(2, bool), alpha=0.1, beta=0.2)
