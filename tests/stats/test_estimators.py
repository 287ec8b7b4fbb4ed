"""pass@k and maj@k against counting by hand, and the laws that they keep."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.stats.estimators import NO_VOTE, ks_up_to, majority_at_k, pass_at_k


def test_pass_at_k_is_the_share_of_all_subsets_with_a_right_one() -> None:
    for n in range(1, 9):
        for k in range(1, n + 1):
            for right in range(n + 1):
                subsets = list(combinations([True] * right + [False] * (n - right), k))
                share = sum(map(any, subsets)) / len(subsets)
                assert pass_at_k(n, [right], k) == pytest.approx([share], abs=1e-12)


def test_ks_are_powers_of_two_and_n() -> None:
    assert ks_up_to(1) == [1]
    assert ks_up_to(10) == [1, 2, 4, 8, 10]
    assert ks_up_to(128) == [1, 2, 4, 8, 16, 32, 64, 128]


def test_the_majority_by_hand() -> None:
    votes = np.array(
        [
            [0, 0, 1, 2],  # of the right, of others
            [0, 1, 1, 2],
            [0, 0, 1, 1],  # a tie of two
            [0, 1, 2, 3],  # of four
            [0, NO_VOTE, NO_VOTE, NO_VOTE],
            [NO_VOTE] * 4,
        ]
    )
    assert majority_at_k(votes, 4).tolist() == [1, 0, 0.5, 0.25, 1, 0]
    assert majority_at_k(votes, 1).tolist() == [0.5, 0.25, 0.5, 0.25, 0.25, 0]
    # Pairs of the first: (0, 0) wins, four (0, other) tie, (1, 2) loses: (1 + 4 / 2) / 6.
    assert majority_at_k(votes, 2) == pytest.approx([3 / 6, 1.5 / 6, 3 / 6, 1.5 / 6, 3 / 6, 0])


def _by_counting(votes: list[int], k: int) -> float:
    total = 0.0
    subsets = list(combinations(votes, k))
    for subset in subsets:
        counts = Counter(vote for vote in subset if vote != NO_VOTE)
        winners = [vote for vote, count in counts.items() if count == max(counts.values())]
        total += (0 in winners) / len(winners) if winners else 0
    return total / len(subsets)


VOTES = st.lists(st.integers(-1, 3), min_size=1, max_size=10)


@given(VOTES, st.data())
def test_the_majority_is_that_of_all_subsets(votes: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(votes)))
    assert majority_at_k(np.array([votes]), k) == pytest.approx([_by_counting(votes, k)])


def test_draws_come_close_to_all_subsets_and_are_the_same_every_time() -> None:
    votes = np.random.default_rng(3).integers(-1, 4, size=(20, 14))
    exact = np.array([_by_counting(problem.tolist(), 6) for problem in votes])  # 3003 subsets
    drawn = majority_at_k(votes, 6)
    assert (drawn != exact).any()
    assert drawn == pytest.approx(exact, abs=4 * 0.5 / 1000**0.5)
    assert drawn.mean() == pytest.approx(exact.mean(), abs=0.01)
    assert (drawn == majority_at_k(votes, 6)).all()
