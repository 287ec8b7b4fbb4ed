"""Estimates and how sure they are: pass@k and maj@k of problems, and intervals of means and of paired differences.

Of benchmarks: a benchmark is a sample of a few dozen or hundred problems, and a score is a mean over them. The Bayesian
bootstrap (Rubin 1981, "The Bayesian Bootstrap") reweights the problems at random with Dirichlet(1, ..., 1) weights and
takes quantiles of the reweighted means. On its own it considers only the sampled problems: if all of 30 problems are
solved, its interval is the single point 1, and if few are solved, its coverage is far below the nominal level.

So 1 pseudo-problem is added, spread over the corners of the score's range: half of it scores 0, half 1. For scores of
0 and 1 the result is exactly Jeffreys' interval (Brown, Cai, DasGupta 2001, "Interval Estimation for a Binomial
Proportion", which also moves an end to the mean if the mean lies outside). For differences of two models the corners
are the pairs (0, 0), (0, 1), (1, 0), (1, 1), a quarter each. An average over benchmarks gets 1 pseudo-problem in total,
not 1 per benchmark, because their pulls towards the middle would add up. No case is degenerate: equal scores and a
single problem have an interval too. docs/evaluation.md compares the measured coverage with other methods.

Of two methods, of few runs, paired (a row is a task and a column a seed): the bootstrap is that of rliable (Agarwal et
al. 2021), with two differences. Runs of a seed share policy and prompts, so a resample draws seeds of each task, each
with its difference. And percentile intervals of five values are too narrow, so the percentiles are moved out as
Hesterberg (2015), "What Teachers Should Know About the Bootstrap", Section 5.1, proposes ("expanded percentile").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

RIGHT = 0  # vote for the right answer, in any notation
NO_VOTE = -1  # vote of a sample without an answer
CHOICES = 1000  # of k samples, at most
LEVEL = 0.95
ENDS = (1 - LEVEL) / 2, (1 + LEVEL) / 2  # of an interval, as quantiles
RESAMPLES = 10_000
_AT_ONCE = 1_000  # resamples whose weights are in memory at the same time

# The value at each corner, and the part of the pseudo-problem there.
Corners = tuple[tuple[float, float], ...]
SCORES: Corners = ((0.0, 0.5), (1.0, 0.5))
DIFFERENCES: Corners = ((-1.0, 0.25), (0.0, 0.5), (1.0, 0.25))

Array = NDArray[np.float64]
Interval = tuple[float, float]


def ks_up_to(n: int) -> list[int]:
    """The powers of two up to ``n``, and ``n``, which is at least 1."""
    return sorted({2**exponent for exponent in range(n.bit_length())} | {n})


def pass_at_k(n: ArrayLike, right: ArrayLike, k: int) -> Array:
    """The probability that k samples, drawn from n without replacement, include a right answer: (P,) float64.

    ``right`` (P,) int counts each problem's right samples c: 1 - C(n - c, k) / C(n, k), the unbiased estimator of Chen
    et al. 2021 ("Evaluating Large Language Models Trained on Code", Section 2.1), for 1 <= k <= n. ``n`` may be (P,).
    """
    n, right = np.asarray(n), np.asarray(right)
    if k == 1:
        return np.asarray(right / n)  # which 1 - (n - c) / n is not to the last digit
    missed = np.ones(np.broadcast_shapes(n.shape, right.shape))
    for taken in range(k):
        missed *= np.maximum(n - right - taken, 0) / (n - taken)
    return 1.0 - missed


def majority_at_k(votes: NDArray[np.int64], k: int) -> Array:
    """The probability that the most frequent answer of k samples, drawn without replacement, is right: (P,) float64.

    ``votes`` (P, n) are RIGHT, NO_VOTE, or the same number for equal wrong answers. Equally frequent answers win with
    the same probability; if none of the k samples has an answer, the vote is wrong. The result is exact if k is 1 (then
    it is pass@1) or n, or if there are at most `CHOICES` ways to choose; otherwise it is the mean over as many seeded
    draws, the same for all problems.
    """
    if k == 1:
        return np.asarray((votes == RIGHT).mean(axis=1), dtype=np.float64)
    chosen = _choices(votes.shape[1], k)
    return np.array([_share_right(problem, chosen) if (problem == RIGHT).any() else 0.0 for problem in votes])


def _choices(n: int, k: int) -> NDArray[np.float32]:
    """A 0/1 matrix (choices, n) of the samples in each choice of k: all choices, or `CHOICES` random ones."""
    if math.comb(n, k) <= CHOICES:
        indices = np.array(list(combinations(range(n), k)))
    else:
        random = np.random.default_rng(0)
        indices = random.permuted(np.tile(np.arange(n), (CHOICES, 1)), axis=1)[:, :k]
    chosen = np.zeros((len(indices), n), dtype=np.float32)
    np.put_along_axis(chosen, indices, 1.0, axis=1)
    return chosen


def _share_right(votes: NDArray[np.int64], chosen: NDArray[np.float32]) -> float:
    """The share of the choices (choices, n) in which the right answer wins a problem's ``votes`` (n,)."""
    answers = np.arange(votes.max() + 1)  # NO_VOTE matches no answer
    counts = chosen @ (votes[:, np.newaxis] == answers).astype(np.float32)  # (choices, answers); integers, so exact
    most = counts.max(axis=1)
    winners = (counts == most[:, np.newaxis]).sum(axis=1)
    right_wins = (counts[:, RIGHT] == most) & (most > 0)
    return float((right_wins / winners).mean())


def mean_intervals(benchmarks: Sequence[Array], corners: Corners = SCORES, *, resamples: int = RESAMPLES) -> Array:
    """Intervals (K, 2) of K means, each the unweighted mean over benchmarks of the mean over their problems.

    ``benchmarks`` are (P_b, K) values each, P_b above 0, between the outermost ``corners``; problems are reweighted
    within their benchmark.
    """
    random = np.random.default_rng(0)
    shares = tuple((corner, part / len(benchmarks)) for corner, part in corners)
    means = np.mean([_reweighted_means(values, shares, resamples, random) for values in benchmarks], axis=0)
    low, high = np.quantile(means, ENDS, axis=0)
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


def _reweighted_means(values: Array, corners: Corners, resamples: int, random: np.random.Generator) -> Array:
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


def interquartile_mean(values: Sequence[float | None]) -> float:
    """The mean of the middle half of the values, where a quarter is rounded down: 3 of 5, 9 of 15."""
    from scipy import stats

    return float(stats.trim_mean(values, 0.25))


def bootstrap_interval(differences: Array) -> Interval:
    """The interval of the mean of paired differences (T, S), S > 1: percentiles further out, the fewer seeds.

    Student's quantile in place of the normal one, and sqrt(S / (S - 1)) because a resample's deviation is too small.
    """
    from scipy import stats

    tasks, seeds = differences.shape
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, tasks, seeds))
    resampled = np.take_along_axis(differences[np.newaxis], drawn, axis=-1).mean(axis=(-2, -1))
    quantile = stats.t.ppf(ENDS[1], tasks * (seeds - 1)) * np.sqrt(seeds / (seeds - 1))
    low, high = np.quantile(resampled, [stats.norm.sf(quantile), stats.norm.cdf(quantile)])
    return float(low), float(high)


def t_interval(differences: Array) -> Interval:
    """Student's interval of the mean of paired differences (T, S): seeds vary within their task, T (S - 1) degrees."""
    from scipy import stats

    tasks, seeds = differences.shape
    error = np.sqrt(differences.var(axis=1, ddof=1).sum() / seeds) / tasks
    half = stats.t.ppf(ENDS[1], tasks * (seeds - 1)) * error
    return float(differences.mean() - half), float(differences.mean() + half)
