"""Estimates against counting by hand, and intervals that hold the truth as often as they say, in simulations."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meds_openrlhf.stats import estimates
from meds_openrlhf.stats.estimates import (
    DIFFERENCES,
    NO_VOTE,
    SCORES,
    bootstrap_interval,
    interquartile_mean,
    ks_up_to,
    majority_at_k,
    mean_intervals,
    pass_at_k,
    t_interval,
)


def test_pass_at_k_is_the_share_of_all_subsets_with_a_right_one() -> None:
    for n in range(1, 9):
        for k in range(1, n + 1):
            for right in range(n + 1):
                subsets = list(combinations([True] * right + [False] * (n - right), k))
                share = sum(map(any, subsets)) / len(subsets)
                assert pass_at_k(n, [right], k) == pytest.approx([share], abs=1e-12)
                assert pass_at_k([n, 8], [right, 0], k) == pytest.approx([share, 0.0], abs=1e-12)


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


ROUNDS = 2000
# Four standard deviations of a share of 95 % among that many rounds: 1.9 points.
TOLERANCE = 4 * (0.95 * 0.05 / ROUNDS) ** 0.5

Values = NDArray[np.float64]
Sampler = Callable[[np.random.Generator, int], Values]


def interval_of(scores: Sequence[float] | Values, corners: Any = SCORES, **options: Any) -> tuple[float, float]:
    """The interval of the mean of scores (P,)."""
    low, high = mean_intervals([np.asarray(scores, np.float64)[:, None]], corners, **options)[0]
    return float(low), float(high)


def interval_of_difference(scores: Sequence[float] | Values, others: Sequence[float] | Values) -> tuple[float, float]:
    """The interval of the mean difference of paired scores (P,)."""
    return interval_of(np.subtract(scores, others), DIFFERENCES)


def _accuracies(alpha: float, beta: float) -> tuple[Sampler, float]:
    """Shares of right ones (P, ROUNDS) among 128 samples of problems of Beta distributed difficulty, and their mean."""
    return lambda random, p: random.binomial(128, random.beta(alpha, beta, (p, ROUNDS))) / 128, alpha / (alpha + beta)


def _pass_at_16(random: np.random.Generator, p: int) -> Values:
    right = random.binomial(32, random.beta(0.25, 1, (p, ROUNDS)))
    return pass_at_k(32, right.ravel(), 16).reshape(right.shape)


POPULATIONS: dict[str, tuple[Sampler, float]] = {
    "hard, as AIME": _accuracies(0.25, 1),
    "easy, as MATH": _accuracies(1.2, 0.4),
    "0 or 1": (lambda random, p: (random.random((p, ROUNDS)) < 0.5).astype(float), 0.5),
    "pass@16": (_pass_at_16, float(np.mean(_pass_at_16(np.random.default_rng(9), 500)))),
}
VERY_HARD, MUCH_ALIKE = _accuracies(0.1, 1.5), _accuracies(8, 12)


def _coverage(intervals: Values, truth: float) -> float:
    """The share of ``intervals`` (ROUNDS, 2) that hold ``truth``."""
    return float(((intervals[:, 0] <= truth) & (truth <= intervals[:, 1])).mean())


ONE_EACH = [(POPULATIONS["hard, as AIME"], 30), (POPULATIONS["0 or 1"], 40), (POPULATIONS["easy, as MATH"], 120)]


@pytest.mark.parametrize(
    ("parts", "seed", "most"),
    [
        *(([(population, 30)], 30, 0.95 + TOLERANCE) for population in POPULATIONS.values()),
        *(([(population, 30)], 30, 0.99) for population in (VERY_HARD, MUCH_ALIKE)),  # it errs on the wide side
        (ONE_EACH, 5, 0.95 + TOLERANCE),
        ([(VERY_HARD, 30)] * 5, 5, 0.95 + TOLERANCE),  # one problem added to each would cover 88 %
    ],
)
def test_coverage_is_what_it_says_also_of_an_average_over_benchmarks(
    parts: list[tuple[tuple[Sampler, float], int]], seed: int, most: float
) -> None:
    random = np.random.default_rng(seed)
    benchmarks = [sampler(random, p) for (sampler, _), p in parts]
    truth = float(np.mean([truth for (_, truth), _ in parts]))
    assert 0.95 - TOLERANCE < _coverage(mean_intervals(benchmarks, resamples=2000), truth) < most


def test_coverage_of_paired_differences_also_of_models_that_hardly_differ() -> None:
    random = np.random.default_rng(500)
    signs = random.choice([-1.0, 0.0, 1.0], p=[0.15, 0.5, 0.35], size=(500, ROUNDS))
    intervals = mean_intervals([signs], DIFFERENCES, resamples=2000)
    assert _coverage(intervals, 0.2) == pytest.approx(0.95, abs=TOLERANCE)
    random = np.random.default_rng(0)
    chance = random.beta(0.3, 1, (30, ROUNDS))
    differences = (random.binomial(128, chance) - random.binomial(128, chance)) / 128
    assert _coverage(mean_intervals([differences], DIFFERENCES, resamples=2000), 0) >= 0.95


def test_of_zeros_and_ones_it_is_jeffreys_interval() -> None:
    # Quantiles of Beta(29.5, 1.5), of Beta(3.5, 7.5).
    for scores, ends in (([1] * 29 + [0], (0.85458, 0.99638)), ([1] * 3 + [0] * 7, (0.09269, 0.60582))):
        assert interval_of(scores, resamples=200_000) == pytest.approx(ends, abs=0.0015)


def test_equal_scores_and_a_single_problem_have_an_interval() -> None:
    low, high = interval_of([1.0] * 30)
    assert 0.90 < low < 0.93
    assert high == 1
    low, high = interval_of([0.25])
    assert 0 < low < 0.1
    assert 0.7 < high < 1
    low, high = interval_of([0.5] * 500)
    assert 0.495 < low < 0.5 < high < 0.505
    low, high = interval_of_difference([0.5] * 30, [0.5] * 30)
    assert -0.1 < low < 0 < high < 0.1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_interval_holds_the_mean_within_the_bounds(values: list[float]) -> None:
    low, high = interval_of(values, resamples=200)
    assert (low, high) == interval_of(values, resamples=200)
    assert 0 <= low <= np.mean(values) <= high <= 1 + 1e-12


def test_pairs_tell_models_apart_that_single_intervals_do_not() -> None:
    difficulty = np.random.default_rng(0).random(200)
    better = np.minimum(difficulty + 0.05, 1)
    low, high = interval_of_difference(better, difficulty)
    assert 0.03 < low < high < 0.07
    assert interval_of(better)[0] < interval_of(difficulty)[1]
    back = interval_of_difference(difficulty, better)
    assert back == pytest.approx((-high, -low), abs=0.002)


STUDIES = 400  # simulated; a share of 0.05 then has a standard error of 0.01


def test_the_interquartile_mean_leaves_out_a_quarter_on_either_side() -> None:
    assert interquartile_mean([0.0, 1.0, 2.0, 6.0, 100.0]) == 3.0
    assert interquartile_mean([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 700.0]) == 3.5


@pytest.mark.parametrize(("tasks", "seeds"), [(1, 5), (3, 5), (3, 8)])
def test_intervals_of_95_percent_cover_92_to_97(tasks: int, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/studies.md says, give or take three standard errors; the least is that of one task with five seeds."""
    monkeypatch.setattr(estimates, "RESAMPLES", 10_000 if tasks == 1 else 2_000)
    drawn = np.random.default_rng(tasks * seeds).normal(0.3, 1.0, size=(STUDIES, tasks, seeds))
    found = np.array([bootstrap_interval(sample) for sample in drawn])
    assert 0.89 <= np.mean((found[:, 0] <= 0.3) & (found[:, 1] >= 0.3)) <= 0.99


def test_seeds_are_drawn_within_their_task() -> None:
    """Tasks that differ from each other, with seeds that do not, leave nothing uncertain."""
    assert bootstrap_interval(np.array([[0.1] * 5, [0.9] * 5])) == pytest.approx((0.5, 0.5))


def test_the_t_interval_is_students() -> None:
    seeds = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    assert t_interval(seeds) == pytest.approx((3 - 1.963243, 3 + 1.963243), abs=1e-6)
    half = 2.306004 * 0.5  # with eight degrees of freedom: that the tasks are 10 apart says nothing about seeds
    assert t_interval(np.concatenate([seeds, seeds + 10])) == pytest.approx((8 - half, 8 + half), abs=1e-6)


def power(effect: float, tasks: int, seeds: int) -> float:
    """The share of studies in which a difference of ``effect`` deviations is found to be above 0."""
    drawn = np.random.default_rng([0, seeds, tasks]).normal(effect, 1.0, size=(STUDIES, tasks, seeds))
    return float(np.mean([bootstrap_interval(sample)[0] > 0 for sample in drawn]))


def test_a_difference_is_found_with_the_stated_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of docs/studies.md: of three tasks with five seeds, a difference of one deviation in 80 %.

    If there is none, a method is found to be better in 2.5 % of studies; up to 4 % with a single task of five seeds.
    """
    monkeypatch.setattr(estimates, "RESAMPLES", 2_000)
    assert 0.003 <= power(0.0, 1, 5) <= 0.065
    assert 0.003 <= power(0.0, 3, 5) <= 0.065
    assert power(1.0, 3, 5) >= 0.8
    assert power(0.5, 3, 5) < 0.6
