"""Intervals cover, equal methods seldom differ, and a planted difference is found."""

import numpy as np
import pytest

from benchmarks.study_power import power, seeds_needed
from meds_openrlhf.study.statistics import (
    STATISTICS,
    bootstrap_interval,
    interquartile_mean,
    mean,
    paired_test,
    probability_of_improvement,
)

STUDIES = 400  # simulated; a share of 0.05 then has a standard error of 0.01


def test_the_interquartile_mean_leaves_out_a_quarter_on_either_side() -> None:
    assert interquartile_mean(np.array([[0.0, 1.0, 2.0, 6.0, 100.0]])) == 3.0
    pooled = np.array([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 700.0]])
    assert interquartile_mean(pooled) == 3.5
    assert interquartile_mean(np.stack([pooled, pooled + 1])).tolist() == [3.5, 4.5]
    assert mean(np.array([[1.0, 2.0], [3.0, 6.0]])) == 3.0


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("tasks", "seeds"), [(1, 5), (3, 5), (3, 8)])
def test_intervals_of_95_percent_cover_92_to_97(tasks: int, seeds: int, statistic: str) -> None:
    """As docs/studies.md says, give or take three standard errors; the least is that of one task with five seeds."""
    drawn = np.random.default_rng(tasks * seeds).normal(0.3, 1.0, size=(STUDIES, tasks, seeds))
    resamples = 10_000 if tasks == 1 else 2_000
    found = [bootstrap_interval(one, STATISTICS[statistic], resamples=resamples, seed=i) for i, one in enumerate(drawn)]
    covered = np.mean([one.low <= 0.3 <= one.high for one in found])
    assert 0.89 <= covered <= 0.99


def test_seeds_are_drawn_within_their_task() -> None:
    """Tasks that differ from each other, with seeds that do not, leave nothing uncertain."""
    found = bootstrap_interval([[0.1] * 5, [0.9] * 5], mean)
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))


def test_a_bootstrap_needs_two_seeds_and_numbers() -> None:
    with pytest.raises(ValueError, match="one says nothing about others"):
        bootstrap_interval([[0.1]])
    with pytest.raises(ValueError, match="leave out what is missing"):
        bootstrap_interval([[0.1, float("nan")]])


def test_the_probability_of_improvement_counts_pairs_and_half_of_the_ties() -> None:
    assert probability_of_improvement([[1.0, 2.0]], [[0.0, 1.0]]).value == 0.875
    both = probability_of_improvement([[1.0, 2.0], [0.0, 0.0]], [[0.0, 0.5], [1.0, 1.0]])
    assert both.value == 0.5
    better = probability_of_improvement([[1.0, 2.0, 3.0]], [[0.0, 2.0, 2.5]])
    assert 0 <= better.low < better.value < better.high == 1


def test_the_paired_test_is_exact_for_few_pairs() -> None:
    scores = np.array([[0.5, 0.6, 0.7, 0.8, 0.9]])
    assert paired_test(scores + np.arange(1, 6) / 10, scores) == pytest.approx(2 / 32)
    assert paired_test(scores + np.array([0.1, -0.1, 0.1, -0.1, 0.0]), scores) == 1.0
    with pytest.raises(ValueError, match="not of the same tasks and seeds"):
        paired_test(scores, scores[:, :4])


def test_the_paired_test_of_equal_methods_rejects_at_its_level() -> None:
    drawn = np.random.default_rng(3).normal(size=(300, 2, 3, 3))
    rejected = np.mean([paired_test(one, other, seed=i) <= 0.05 for i, (one, other) in enumerate(drawn)])
    assert rejected <= 0.09  # three standard errors above


@pytest.mark.parametrize(("tasks", "seeds"), [(1, 5), (3, 5)])
def test_of_equal_methods_one_is_found_better_at_half_the_level(tasks: int, seeds: int) -> None:
    """2.5 %; up to 4 % with a single task of five seeds."""
    assert 0.003 <= power(0.0, seeds, tasks, studies=STUDIES) <= 0.065


def test_a_planted_difference_is_found_with_the_stated_power() -> None:
    needed = seeds_needed(1.0, tasks=3, studies=200)
    assert needed == 5
    assert power(1.0, needed, 3, studies=STUDIES) >= 0.8
    assert power(0.5, needed, 3, studies=STUDIES) < 0.6
