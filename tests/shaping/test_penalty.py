"""The penalty's formula and the shaped reward, by hand and as laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.shaping.penalty import cluster_penalty, shaped_reward


def test_the_penalty_by_hand() -> None:
    penalty = cluster_penalty(np.array([0, 1, 3, 6, 7, 100]), alpha=0.1, beta=0.2)
    np.testing.assert_allclose(penalty, [0.0, 0.0693147, 0.1386294, 0.1945910, 0.2, 0.2], atol=1e-7)
    assert penalty.dtype == np.float64


def test_the_shaped_reward_by_hand() -> None:
    raw = np.array([1.0, 1.0, -0.5, 0.0, -1.0, 1.0], dtype=np.float32)
    penalty = np.array([0.25, 0.25, 0.25, 0.2, 0.2, 0.0])
    correct = np.array([True, False, True, False, False, True])
    np.testing.assert_allclose(shaped_reward(raw, penalty, correct), [0.8, 0.75, -0.4, -0.2, -1.2, 1.0])


@given(st.floats(-2, 2, width=32), st.floats(0, 1))
def test_a_right_rollout_keeps_its_sign_and_a_wrong_one_loses_the_penalty(raw: float, penalty: float) -> None:
    reward, taken = np.array([raw, raw], dtype=np.float32), np.array([penalty, penalty])
    right, wrong = shaped_reward(reward, taken, np.array([True, False]))
    assert np.sign(right) == np.sign(raw)
    assert abs(right) <= abs(raw)
    assert wrong == raw - penalty


def test_without_a_penalty_rewards_stay_to_the_last_bit() -> None:
    raw = np.random.default_rng(0).normal(size=100).astype(np.float32)
    correct = np.arange(100) % 2 == 0
    np.testing.assert_array_equal(shaped_reward(raw, np.zeros(100), correct).astype(np.float32), raw)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        shaped_reward(np.zeros(2), np.zeros(3), np.zeros(2, bool))
