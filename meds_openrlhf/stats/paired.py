"""Paired differences of two methods, of few runs: a row is a task and a column a seed, (T, S) float64.

The bootstrap is that of rliable (Agarwal et al. 2021), with two differences. Runs of a seed share policy and prompts,
so a resample draws seeds of each task, each with its difference. And percentile intervals of five values are too
narrow, so the percentiles are moved out as Hesterberg (2015), "What Teachers Should Know About the Bootstrap", Section
5.1, proposes ("expanded percentile").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from meds_openrlhf.stats.intervals import LEVEL

RESAMPLES = 10_000

Array = NDArray[np.float64]
Interval = tuple[float, float]


def interquartile_mean(values: Sequence[float | None]) -> float:
    """The mean of the middle half of the values, where a quarter is rounded down: 3 of 5, 9 of 15."""
    return float(stats.trim_mean(values, 0.25))


def bootstrap_interval(differences: Array) -> Interval:
    """The interval of the mean of paired differences (T, S), S > 1: percentiles further out, the fewer seeds.

    Student's quantile in place of the normal one, and sqrt(S / (S - 1)) because a resample's deviation is too small.
    """
    tasks, seeds = differences.shape
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, tasks, seeds))
    resampled = np.take_along_axis(differences[np.newaxis], drawn, axis=-1).mean(axis=(-2, -1))
    quantile = stats.t.ppf((1 + LEVEL) / 2, tasks * (seeds - 1)) * np.sqrt(seeds / (seeds - 1))
    low, high = np.quantile(resampled, [stats.norm.sf(quantile), stats.norm.cdf(quantile)])
    return float(low), float(high)


def t_interval(differences: Array) -> Interval:
    """Student's interval of the mean of paired differences (T, S): seeds vary within their task, T (S - 1) degrees."""
    tasks, seeds = differences.shape
    error = np.sqrt(differences.var(axis=1, ddof=1).sum() / seeds) / tasks
    half = stats.t.ppf((1 + LEVEL) / 2, tasks * (seeds - 1)) * error
    return float(differences.mean() - half), float(differences.mean() + half)
