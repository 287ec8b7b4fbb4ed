"""Pass@k advantages by the paper's closed forms and by counting every subset."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.shaping.pass_at_k import pass_at_k_advantages


@pytest.mark.parametrize("size", [4, 16, 300])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_is_the_papers_closed_form(size: int, k: int) -> None:
    for right in range(1, size - k + 1):
        wrong = size - right
        mean = 1 - comb(wrong, k) / comb(size, k)
        deviation = np.sqrt(mean * (1 - mean)) + 1e-6
        positive, negative = 1 - mean, 1 - mean - comb(wrong - 1, k - 1) / comb(size - 1, k - 1)
        rewards = np.random.default_rng(right).permutation([1.0] * right + [0.0] * wrong)
        advantages = pass_at_k_advantages(rewards[None], k)[0]
        expected = np.where(rewards == 1, positive, negative) / deviation
        np.testing.assert_allclose(advantages, expected, rtol=1e-6, atol=1e-7)


@given(st.lists(st.sampled_from([-0.2, -0.1386, -0.0693, 0.0, 0.875, 1.0]), min_size=3, max_size=7), st.data())
def test_pass_at_k_of_any_rewards_counts_every_subset(rewards: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(rewards)))
    subsets = list(combinations(range(len(rewards)), k))
    best = np.array([max(rewards[i] for i in subset) for subset in subsets])
    own = [best[[i in subset for subset in subsets]].mean() for i in range(len(rewards))]
    expected = (np.array(own) - best.mean()) / (best.std() + 1e-6)
    advantages = pass_at_k_advantages(np.array([rewards]), k)[0]
    np.testing.assert_allclose(advantages, expected, atol=1e-6)
    assert abs(advantages.mean()) < 1e-9


@pytest.mark.parametrize("rewards", [[1, 1, 1, 0], [0, 0, 0, 0], [-0.2] * 4, [1, 1, -0.2, 1]])
def test_without_a_difference_between_subsets_there_is_no_advantage(rewards: list[float]) -> None:
    assert (pass_at_k_advantages(np.array([rewards], np.float32), 2) == 0).all()


@pytest.mark.parametrize("k", [0, 5])
def test_subsets_larger_than_the_group_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k}: must be from 1 to 4, the responses"):
        pass_at_k_advantages(np.zeros((2, 4)), k)
