"""Claims judged by the study's rule.

The paired difference of a claim is that of its two methods with the same task and seed. Its statistic has a bootstrap
interval (`study.statistics`), and in the claimed direction

- high end below ``matters``, or below 0                 the claim does not hold
- otherwise, low end above 0                             it holds
- otherwise                                              it cannot be decided with so many seeds

A claim is not judged before all of its runs are finished, for whoever looks and stops when it suits finds anything;
and not with fewer than `LEAST_SEEDS`, whose intervals are too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.study.results import RunResult, metric_of
from meds_openrlhf.study.statistics import (
    STATISTICS,
    Interval,
    bootstrap_interval,
    paired_test,
    probability_of_improvement,
)
from meds_openrlhf.study.study_file import Claim, Study

LEAST_SEEDS = 5
HOLDS, DOES_NOT_HOLD = "holds", "does not hold"

Key = tuple[str, str, int]  # task, method, seed
Results = Mapping[Key, RunResult]  # of finished runs


@dataclass(frozen=True)
class Pairs:
    """The scores of two methods, (T, S) each, in the tasks and seeds of which both have them; ``missing`` pairs."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    scores: NDArray[np.float64]
    others: NDArray[np.float64]
    missing: int


@dataclass(frozen=True)
class Comparison:
    """A paired difference with its interval, the probability of improvement, and the p-value of a paired test."""

    pairs: Pairs
    difference: Interval
    improvement: Interval
    p_value: float


@dataclass(frozen=True)
class Verdict:
    """A claim, its verdict in words, and the comparison (None if fewer than two seeds have all tasks)."""

    name: str
    claim: Claim
    verdict: str
    comparison: Comparison | None


def pairs_of(
    study: Study, results: Results, sides: tuple[tuple[str, str], tuple[str, str]], tasks: tuple[str, ...]
) -> Pairs:
    """The scores of two sides (method, metric), of the seeds that have both in every task."""
    table = np.full((2, len(tasks), len(study.seeds)), np.nan)
    for side, (method, metric) in enumerate(sides):
        for row, task in enumerate(tasks):
            for column, seed in enumerate(study.seeds):
                result = results.get((task, method, seed))
                value = None if result is None else metric_of(result, metric, study.rule.last)
                table[side, row, column] = np.nan if value is None else value
    known = np.isfinite(table).all(axis=0)  # (T, S)
    whole = known.all(axis=0)
    seeds = tuple(seed for seed, is_whole in zip(study.seeds, whole) if is_whole)
    return Pairs(tasks, seeds, table[0][:, whole], table[1][:, whole], int((~known).sum()))


def compare(pairs: Pairs, study: Study, direction: str = "higher") -> Comparison | None:
    """The comparison of paired scores; None for fewer than two seeds. ``direction`` says what is an improvement."""
    if len(pairs.seeds) < 2:
        return None
    statistic, level = STATISTICS[study.rule.statistic], study.rule.level
    sign = -1 if direction == "lower" else 1
    return Comparison(
        pairs=pairs,
        difference=bootstrap_interval(pairs.scores - pairs.others, statistic, level=level),
        improvement=probability_of_improvement(sign * pairs.scores, sign * pairs.others, level=level),
        p_value=paired_test(pairs.scores, pairs.others, statistic),
    )


def judge(study: Study, results: Results, name: str) -> Verdict:
    """Judge a claim by the study's rule."""
    claim = study.claims[name]
    tasks = study.tasks_of(claim)
    first, second = claim.metrics
    pairs = pairs_of(study, results, ((claim.method, first), (claim.than, second)), tasks)
    comparison = compare(pairs, study, claim.direction)
    if pairs.missing:
        verdict = f"not judged yet: {pairs.missing} of {len(tasks) * len(study.seeds)} pairs are missing"
    elif comparison is None or len(pairs.seeds) < LEAST_SEEDS:
        verdict = undecided(len(pairs.seeds))
    else:
        verdict = verdict_of(comparison.difference, claim, len(pairs.seeds))
    return Verdict(name, claim, verdict, comparison)


def verdict_of(difference: Interval, claim: Claim, seeds: int) -> str:
    """The verdict that an interval of the paired difference gives."""
    low, high = difference.low, difference.high
    if claim.direction == "lower":
        low, high = -high, -low
    if high < claim.matters or high < 0:
        return DOES_NOT_HOLD
    return HOLDS if low > 0 else undecided(seeds)


def undecided(seeds: int) -> str:
    """The verdict if neither is certain."""
    return f"cannot be decided with {seeds} seed{'' if seeds == 1 else 's'}"
