"""Laws of the weights: what stays as without a memory, and what never happens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meds_openrlhf.shaping.weights import cluster_weights, pressure

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 9))


@st.composite
def groups(draw):
    """Sizes, verdicts, rows and advantages of g groups of N responses, each (g, N)."""
    shape = draw(SHAPES)
    sizes = draw(arrays(np.int32, shape, elements=st.integers(0, 5000)))
    wrong, has_row = draw(arrays(bool, shape)), draw(arrays(bool, shape))
    values = st.floats(-3, 3, width=32, allow_subnormal=False)
    return sizes, wrong, has_row, draw(arrays(np.float32, shape, elements=values))


def test_weights_are_in_proportion_to_the_rows_before():
    sizes = np.array([[11, 11, 5, 2, 900, 900]])
    wrong = np.array([[True] * 4 + [False] * 2])
    found = cluster_weights(sizes, wrong, np.ones_like(wrong))
    assert found == pytest.approx(np.array([[12, 12, 6, 3, 8.25, 8.25]]) / 8.25)


def test_a_weight_is_limited_before_the_mean_is_1_again():
    sizes, wrong = np.array([[0, 0, 0, 0, 0, 0, 0, 992]]), np.ones((1, 8), bool)
    limited = np.array([0.25] * 7 + [4.0])  # of 1/125 and 993/125
    assert cluster_weights(sizes, wrong, wrong) == pytest.approx(limited[None] / limited.mean())


def test_a_wrong_response_without_an_answer_counts_like_the_largest_cluster():
    sizes, wrong = np.array([[7, 1, 0, 99]]), np.array([[True, True, True, False]])
    has_row = np.array([[True, True, False, True]])
    assert cluster_weights(sizes, wrong, has_row)[0, 2] == cluster_weights(sizes, wrong, has_row)[0, 0] > 1


@settings(deadline=None)
@given(groups())
def test_laws(drawn):
    sizes, wrong, has_row, advantages = drawn
    weights = cluster_weights(sizes, wrong, has_row)
    factors = pressure(advantages, weights, wrong)
    weighted = advantages * factors
    assert (weights > 0).all()
    assert (factors > 0).all()
    assert weights[wrong].sum() == pytest.approx(wrong.sum())
    assert (weights[~wrong] == 1).all()
    assert (factors[~wrong] == 1).all()
    assert weighted.sum(axis=1) == pytest.approx(advantages.astype(float).sum(axis=1), abs=1e-5)
    assert (np.sign(weighted) == np.sign(advantages)).all()
    assert (weighted <= np.maximum(advantages, 0) + 1e-12).all()  # a wrong response never gains from the memory


@settings(deadline=None)
@given(groups(), st.integers(0, 5000))
def test_equal_sizes_change_no_bit(drawn, size):
    _, wrong, has_row, advantages = drawn
    weights = cluster_weights(np.full(wrong.shape, size), wrong, has_row | True)
    assert (weights == 1).all()
    assert (pressure(advantages, weights, wrong) == 1).all()
