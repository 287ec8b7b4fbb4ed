"""Intervals for a mean over problems by the Bayesian bootstrap, with 1 pseudo-problem added.

A benchmark is a sample of a few dozen or hundred problems, and a score is a mean over them. The Bayesian bootstrap
(Rubin 1981, "The Bayesian Bootstrap") reweights the problems at random with Dirichlet(1, ..., 1) weights and takes
quantiles of the reweighted means. On its own it considers only the sampled problems: if all of 30 problems are solved,
its interval is the single point 1, and if few are solved, its coverage is far below the nominal level.

So 1 pseudo-problem is added, spread over the corners of the score's range: half of it scores 0, half 1. For scores of
0 and 1 the result is exactly Jeffreys' interval (Brown, Cai, DasGupta 2001, "Interval Estimation for a Binomial
Proportion", which also moves an end to the mean if the mean lies outside). For differences of two models the corners
are the pairs (0, 0), (0, 1), (1, 0), (1, 1), a quarter each. An average over benchmarks gets 1 pseudo-problem in total,
not 1 per benchmark, because their pulls towards the middle would add up. No case is degenerate: equal scores and a
single problem have an interval too. docs/evaluation.md compares the measured coverage with other methods.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 10_000
_AT_ONCE = 1_000  # resamples whose weights are in memory at the same time

# The value at each corner, and the part of the pseudo-problem there.
Corners = tuple[tuple[float, float], ...]
SCORES: Corners = ((0.0, 0.5), (1.0, 0.5))
DIFFERENCES: Corners = ((-1.0, 0.25), (0.0, 0.5), (1.0, 0.25))


def mean_intervals(
    benchmarks: Sequence[NDArray[np.float64]],
    corners: Corners = SCORES,
    *,
    resamples: int = RESAMPLES,
) -> NDArray[np.float64]:
    """Intervals (K, 2) of K means, each the unweighted mean over benchmarks of the mean over their problems.

    ``benchmarks`` are (P_b, K) values each, P_b above 0, between the outermost ``corners``; problems are reweighted
    within their benchmark.
    """
    random = np.random.default_rng(0)
    shares = tuple((corner, part / len(benchmarks)) for corner, part in corners)
    means = np.mean([_reweighted_means(values, shares, resamples, random) for values in benchmarks], axis=0)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    mean = np.mean([values.mean(axis=0) for values in benchmarks], axis=0)
    return np.stack([np.minimum(low, mean), np.maximum(high, mean)], axis=1)


def joint_intervals(values: NDArray[np.float64], families: int = 1, *, resamples: int = 4_000) -> NDArray[np.float64]:
    """Intervals (K, 2) of the means of K differences (P, K) over P problems, which all hold at the level at once.

    They are as many deviations wide as the largest of the K means deviates in the reweighted samples. With several
    ``families`` of differences of the same size, all of them hold at once.
    """
    means = _reweighted_means(values, DIFFERENCES, resamples, np.random.default_rng(0))
    center, deviation = means.mean(axis=0), np.maximum(means.std(axis=0), 1e-12)
    farthest = np.abs((means - center) / deviation).max(axis=1)
    reach = np.quantile(farthest, 1 - (1 - LEVEL) / families) * deviation
    mean = values.mean(axis=0)
    return np.stack([np.minimum(center - reach, mean), np.maximum(center + reach, mean)], axis=1)


def _reweighted_means(
    values: NDArray[np.float64], corners: Corners, resamples: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """Means (resamples, K) of ``values`` (P, K) and the corners under Dirichlet weights (normalized gamma variates)."""
    at_corners = np.repeat([[corner] for corner, _ in corners], values.shape[1], axis=1)  # (C, K)
    parts = [part for _, part in corners]
    means = []
    for start in range(0, resamples, _AT_ONCE):
        size = min(_AT_ONCE, resamples - start)
        weights = random.standard_exponential((size, len(values)))
        added = random.standard_gamma(parts, (size, len(parts)))
        total = weights.sum(axis=1) + added.sum(axis=1)
        means.append((weights @ values + added @ at_corners) / total[:, np.newaxis])
    return np.concatenate(means)
