"""Running moments against numpy on the whole matrix, in any order of merging."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.memory.moments import Moments


@given(st.integers(0, 10**6), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.permutations(range(6)))
def test_merging_equals_the_whole_matrix(seed: int, sizes: list[int], order: list[int]) -> None:
    generator = np.random.default_rng(seed)
    pieces = [generator.normal(loc=3.0, size=(size, 4)) for size in sizes]
    merged = Moments.of(np.empty((0, 4)))
    for index in order:
        if index < len(pieces):
            merged = merged.merge(Moments.of(pieces[index]))
    whole = np.concatenate(pieces)
    assert merged.count == len(whole)
    if len(whole) >= 2:
        expected = np.cov(whole.T) * (len(whole) - 1)
        np.testing.assert_allclose(merged.scatter, expected, rtol=1e-9, atol=1e-9)
        values = np.linalg.eigvalsh(np.cov(whole.T))
        assert merged.top_eigen_ratio() == pytest.approx(values[-1] / values.sum(), rel=1e-9)


def test_vectors_along_one_line_have_ratio_one() -> None:
    line = np.outer(np.arange(5.0), [1.0, 2.0, -1.0])
    assert Moments.of(line).top_eigen_ratio() == pytest.approx(1.0)


def test_a_round_cloud_has_the_same_share_in_every_direction() -> None:
    cross = np.concatenate([np.eye(4), -np.eye(4)])
    assert Moments.of(cross).top_eigen_ratio() == pytest.approx(0.25)


def test_no_ratio_without_variation() -> None:
    assert Moments.of(np.ones((1, 3))).top_eigen_ratio() is None
    assert Moments.of(np.ones((5, 3))).top_eigen_ratio() is None
