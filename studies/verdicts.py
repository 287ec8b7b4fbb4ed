"""Claims judged by the rule of all studies, from few paired runs.

The paired difference of a claim is that of its two methods with the same task and seed. Its mean has an interval, the
bootstrap's or Student's, and in the claimed direction

- high end below ``matters``, or below 0                 the claim does not hold
- otherwise, low end above 0                             it holds
- otherwise                                              it cannot be decided with so many seeds

A claim is not judged before all of its runs are finished, for whoever looks and stops when it suits finds anything;
and not with fewer seeds than `INTERVALS` says, whose intervals are too narrow, or too wide to be of use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from meds_openrlhf.stats.paired import Array, Interval, bootstrap_interval, t_interval
from studies.results import Result
from studies.study import INTERVALS, Claim, Key, Study

Results = Mapping[Key, Result]  # of the finished runs
Side = tuple[str, str]  # a method and a metric of it


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
    of = {"bootstrap": bootstrap_interval, "t": t_interval}[study.rule.interval]
    interval = of(gaps) if len(study.seeds) >= INTERVALS[study.rule.interval] else (-np.inf, np.inf)
    return verdict_of(interval, claim, len(study.seeds)), gaps


def verdict_of(interval: Interval, claim: Claim, seeds: int) -> str:
    """The verdict that an interval of the paired difference gives."""
    low, high = interval if claim.direction == "higher" else (-interval[1], -interval[0])
    if high < claim.matters or high < 0:
        return "does not hold"
    return "holds" if low > 0 else f"cannot be decided with {seeds} seed{'' if seeds == 1 else 's'}"
