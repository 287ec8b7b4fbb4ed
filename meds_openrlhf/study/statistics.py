"""Statistics of few paired runs: interquartile mean, intervals, probability of improvement, a paired test.

As in rliable (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"), with two
differences. Runs of a seed share policy and prompts, so differences are taken seed by seed, and a resample draws seeds
of each task (the stratum). And percentile intervals of five values are too narrow, so the percentiles are moved out as
Hesterberg (2015), "What Teachers Should Know About the Bootstrap", Section 5.1, proposes ("expanded percentile").

Everywhere, a row is a task and a column a seed: (T, S) float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]  # of (..., T, S), over the last two axes

LEVEL = 0.95
RESAMPLES = 10_000
_EXACT = 1 << 14  # so many ways to flip signs are all tried, more are drawn


@dataclass(frozen=True)
class Interval:
    """A figure and the ends of its interval."""

    value: float
    low: float
    high: float


def mean(values: Array) -> Array:
    """The mean over tasks and seeds of (..., T, S)."""
    return np.asarray(values.mean(axis=(-2, -1)))


def interquartile_mean(values: Array) -> Array:
    """The mean of the middle half of all values of (..., T, S), where a quarter is rounded down: 3 of 5, 9 of 15."""
    pooled = values.reshape(*values.shape[:-2], -1)
    return np.asarray(stats.trim_mean(pooled, 0.25, axis=-1))


STATISTICS: dict[str, Statistic] = {"mean": mean, "iqm": interquartile_mean}


def bootstrap_interval(
    values: ArrayLike,
    statistic: Statistic = interquartile_mean,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The interval of a statistic of ``values`` (T, S), of scores or of paired differences; seeds are drawn per task.

    Raises ValueError for fewer than two seeds, which say nothing about other seeds.
    """
    found = _checked(values)
    return _interval(float(statistic(found)), statistic(_resampled(found, resamples, seed)), found.shape, level)


def probability_of_improvement(
    scores: ArrayLike,
    others: ArrayLike,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The probability that a run with ``scores`` (T, S) beats a run with ``others`` (T, S), mean over tasks; ties half.

    Compares all pairs of a task's runs (Mann and Whitney's U over S * S). A resample draws the seeds of both methods
    apart: drawn together, the pairs of a seed with itself would count too often.
    """
    first, second = _checked(scores), _checked(others)
    _require_same_shape(first, second)
    drawn = (_resampled(values, resamples, seed + number) for number, values in enumerate((first, second)))
    value = float(_share_of_wins(first, second))
    found = _interval(value, _share_of_wins(*drawn), first.shape, level)
    return Interval(value, max(found.low, 0.0), min(found.high, 1.0))


def paired_test(scores: ArrayLike, others: ArrayLike, statistic: Statistic = mean, *, seed: int = 0) -> float:
    """The two-sided p-value of a permutation test: were the two methods alike, each pair could as well be swapped.

    Exact for up to 14 pairs, otherwise from 16,384 swaps drawn at random. Five pairs reach no less than 2 / 32.
    """
    first, second = _checked(scores), _checked(others)
    _require_same_shape(first, second)
    shape = first.shape

    def difference(x: Array, y: Array, axis: int) -> Array:
        gaps = np.moveaxis(x - y, axis, -1)
        return statistic(gaps.reshape(*gaps.shape[:-1], *shape))

    options: dict[str, Any] = {"permutation_type": "samples", "n_resamples": _EXACT, "vectorized": True}
    result = stats.permutation_test(
        (first.ravel(), second.ravel()), difference, rng=np.random.default_rng(seed), **options
    )
    return float(result.pvalue)


def _checked(values: ArrayLike) -> Array:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 2 or not found.size:
        raise ValueError(f"scores: of shape {found.shape} are not those of tasks x seeds")
    if not np.isfinite(found).all():
        raise ValueError("scores: some are no finite numbers; leave out what is missing")
    if found.shape[1] < 2:
        raise ValueError("seeds: one says nothing about others; give two or more")
    return found


def _require_same_shape(first: Array, second: Array) -> None:
    if first.shape != second.shape:
        raise ValueError(f"paired scores: {first.shape} and {second.shape} are not of the same tasks and seeds")


def _resampled(values: Array, resamples: int, seed: int) -> Array:
    """Values (R, T, S) with seeds drawn with replacement, task by task."""
    drawn = np.random.default_rng(seed).integers(values.shape[1], size=(resamples, *values.shape))
    return np.take_along_axis(values[np.newaxis], drawn, axis=-1)


def _interval(value: float, resampled: Array, shape: tuple[int, ...], level: float) -> Interval:
    """Percentiles of ``resampled`` (R,), further out the fewer seeds there are.

    Student's quantile in place of the normal one, and sqrt(S / (S - 1)) because a resample's deviation is too small.
    """
    tasks, seeds = shape
    quantile = stats.t.ppf((1 + level) / 2, tasks * (seeds - 1)) * np.sqrt(seeds / (seeds - 1))
    tail = float(stats.norm.sf(quantile))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def _share_of_wins(first: Array, second: Array) -> Array:
    """Of (..., T, S) each: the share of pairs in which the first is higher, mean over tasks."""
    gaps = first[..., :, np.newaxis] - second[..., np.newaxis, :]
    return np.asarray(((np.sign(gaps) + 1) / 2).mean(axis=(-3, -2, -1)))
