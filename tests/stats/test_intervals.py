"""Intervals hold the truth as often as they say, in simulated benchmarks of which the truth is known."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meds_openrlhf.stats.estimators import pass_at_k
from meds_openrlhf.stats.intervals import DIFFERENCES, SCORES, mean_intervals

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


@pytest.mark.parametrize("name", POPULATIONS)
def test_coverage_is_what_it_says(name: str) -> None:
    sampler, truth = POPULATIONS[name]
    values = sampler(np.random.default_rng(30), 30)
    assert _coverage(mean_intervals([values], resamples=2000), truth) == pytest.approx(0.95, abs=TOLERANCE)


@pytest.mark.parametrize("population", [VERY_HARD, MUCH_ALIKE])
def test_of_few_problems_it_errs_on_the_wide_side(population: tuple[Sampler, float]) -> None:
    sampler, truth = population
    coverage = _coverage(mean_intervals([sampler(np.random.default_rng(30), 30)], resamples=2000), truth)
    assert 0.95 - TOLERANCE < coverage < 0.99


@pytest.mark.parametrize(
    "parts",
    [
        [(POPULATIONS["hard, as AIME"], 30), (POPULATIONS["0 or 1"], 40), (POPULATIONS["easy, as MATH"], 120)],
        [(VERY_HARD, 30)] * 5,  # one problem added to each would cover 88 %
    ],
)
def test_coverage_of_an_average_over_benchmarks(parts: list[tuple[tuple[Sampler, float], int]]) -> None:
    random = np.random.default_rng(5)
    benchmarks = [sampler(random, p) for (sampler, _), p in parts]
    truth = float(np.mean([truth for (_, truth), _ in parts]))
    coverage = _coverage(mean_intervals(benchmarks, resamples=2000), truth)
    assert coverage == pytest.approx(0.95, abs=TOLERANCE)


def test_coverage_of_paired_differences() -> None:
    random = np.random.default_rng(500)
    signs = random.choice([-1.0, 0.0, 1.0], p=[0.15, 0.5, 0.35], size=(500, ROUNDS))
    intervals = mean_intervals([signs], DIFFERENCES, resamples=2000)
    assert _coverage(intervals, 0.2) == pytest.approx(0.95, abs=TOLERANCE)


def test_models_that_hardly_differ_are_not_told_apart_too_often() -> None:
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
