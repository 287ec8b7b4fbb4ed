"""Claims judged by the rule of all studies, from few paired runs.

The paired difference of a claim is that of its two methods with the same task and seed. Its mean has a bootstrap
interval, and in the claimed direction

- high end below ``matters``, or below 0                 the claim does not hold
- otherwise, low end above 0                             it holds
- otherwise                                              it cannot be decided with so many seeds

A claim is not judged before all of its runs are finished, for whoever looks and stops when it suits finds anything;
and not with fewer than `LEAST_SEEDS`, whose intervals are too narrow.

The bootstrap is that of rliable (Agarwal et al. 2021), with two differences. Runs of a seed share policy and prompts,
so a resample draws seeds of each task, each with its difference. And percentile intervals of five values are too
narrow, so the percentiles are moved out as Hesterberg (2015), "What Teachers Should Know About the Bootstrap", Section
5.1, proposes ("expanded percentile"). In all arrays a row is a task and a column a seed: (T, S) float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from studies.results import Result
from studies.study import Claim, Key, Study

LEAST_SEEDS = 5
LEVEL = 0.95
RESAMPLES = 10_000

Array = NDArray[np.float64]
Interval = tuple[float, float]
Results = Mapping[Key, Result]  # of the finished runs
Side = tuple[str, str]  # a method and a metric of it


def interquartile_mean(values: Sequence[float | None]) -> float:
    """The mean of the middle half of the values, where a quarter is rounded down: 3 of 5, 9 of 15."""
    return float(stats.trim_mean(values, 0.25))


def bootstrap_interval(values: Array) -> Interval:
    """The interval of the mean of paired differences (T, S), S > 1: percentiles further out, the fewer seeds.

    Student's quantile in place of the normal one, and sqrt(S / (S - 1)) because a resample's deviation is too small.
    """
    tasks, seeds = values.shape
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, tasks, seeds))
    resampled = np.take_along_axis(values[np.newaxis], drawn, axis=-1).mean(axis=(-2, -1))
    quantile = stats.t.ppf((1 + LEVEL) / 2, tasks * (seeds - 1)) * np.sqrt(seeds / (seeds - 1))
    low, high = np.quantile(resampled, [stats.norm.sf(quantile), stats.norm.cdf(quantile)])
    return float(low), float(high)


def t_interval(differences: Array) -> Interval:
    """Student's interval of the mean of paired differences (T, S): seeds vary within their task, T (S - 1) degrees."""
    tasks, seeds = differences.shape
    error = np.sqrt(differences.var(axis=1, ddof=1).sum() / seeds) / tasks
    half = stats.t.ppf((1 + LEVEL) / 2, tasks * (seeds - 1)) * error
    return float(differences.mean() - half), float(differences.mean() + half)


def differences_of(study: Study, results: Results, sides: tuple[Side, Side], tasks: Sequence[str]) -> tuple[Array, int]:
    """The paired differences (T, S) of two sides, of the seeds with both in every task; and how many are missing."""
    table = np.full((2, len(tasks), len(study.seeds)), np.nan)
    for side, row, column in np.ndindex(table.shape):
        method, metric = sides[side]
        result = results.get((tasks[row], method, study.seeds[column]))
        value = None if result is None else result.metric(metric, study.rule.last)
        table[side, row, column] = np.nan if value is None else value
    gaps = table[0] - table[1]
    missing = np.isnan(gaps)
    return gaps[:, ~missing.any(axis=0)], int(missing.sum())


def judge(study: Study, results: Results, claim: Claim) -> tuple[str, Array]:
    """The verdict on a claim in words, and the paired differences (T, S) that it rests on."""
    tasks = claim.tasks or tuple(study.tasks)
    gaps, missing = differences_of(study, results, claim.sides, tasks)
    if missing:
        return f"not judged yet: {missing} of {len(tasks) * len(study.seeds)} pairs are missing", gaps
    interval = bootstrap_interval(gaps) if len(study.seeds) >= LEAST_SEEDS else (-np.inf, np.inf)
    return verdict_of(interval, claim, len(study.seeds)), gaps


def verdict_of(interval: Interval, claim: Claim, seeds: int) -> str:
    """The verdict that an interval of the paired difference gives."""
    low, high = interval if claim.direction == "higher" else (-interval[1], -interval[0])
    if high < claim.matters or high < 0:
        return "does not hold"
    return "holds" if low > 0 else f"cannot be decided with {seeds} seed{'' if seeds == 1 else 's'}"
