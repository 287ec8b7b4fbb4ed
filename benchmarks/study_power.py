"""How many seeds does a difference need? The rule of studies, applied to simulated ones (docs/studies.md).

    python -m benchmarks.study_power --deviation 0.01 0.02 0.03 --difference 0.01 0.02 0.03 0.05 --tasks 3

``--deviation`` is the standard deviation, from seed to seed, of the paired difference of two methods, in the units of
the metric: from a pilot, or about 1.4 times that of one method's score where pairing does not help. Differences are
normal. A cell is the least number of seeds with which the claim "higher" is found to hold in 80 % of the studies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from meds_openrlhf.report.output import markdown_table
from meds_openrlhf.study.statistics import LEVEL, STATISTICS, bootstrap_interval
from meds_openrlhf.study.verdicts import LEAST_SEEDS

POWER = 0.8
SEEDS = (5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100)


def power(
    effect: float, seeds: int, tasks: int, *, statistic: str = "mean", level: float = LEVEL, studies: int, seed: int = 0
) -> float:
    """The share of ``studies`` in which a difference of ``effect`` deviations is found to be above 0."""
    drawn = np.random.default_rng([seed, seeds, tasks]).normal(effect, 1.0, size=(studies, tasks, seeds))
    intervals = (bootstrap_interval(sample, STATISTICS[statistic], level=level, resamples=2000) for sample in drawn)
    return float(np.mean([interval.low > 0 for interval in intervals]))


def seeds_needed(
    effect: float, tasks: int, *, statistic: str = "mean", level: float = LEVEL, studies: int
) -> int | None:
    """The least of `SEEDS` with `POWER`; None if the most have less."""
    low, high = 0, len(SEEDS)
    while low < high:
        middle = (low + high) // 2
        if power(effect, SEEDS[middle], tasks, statistic=statistic, level=level, studies=studies) >= POWER:
            high = middle
        else:
            low = middle + 1
    return SEEDS[low] if low < len(SEEDS) else None


def main(command_line: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.study_power", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--deviation", type=float, nargs="+", default=[0.01, 0.02, 0.03, 0.04])
    parser.add_argument("--difference", type=float, nargs="+", default=[0.005, 0.01, 0.02, 0.03, 0.05])
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--statistic", choices=STATISTICS, default="mean")
    parser.add_argument("--level", type=float, default=LEVEL)
    parser.add_argument("--studies", type=int, default=1000, help="simulated for each cell")
    given = parser.parse_args(command_line)
    rule = {"statistic": given.statistic, "level": given.level, "studies": given.studies}
    rows = []
    for difference in given.difference:
        needed = [seeds_needed(difference / deviation, given.tasks, **rule) for deviation in given.deviation]
        rows.append([f"{difference:g}", *(f"above {SEEDS[-1]}" if seeds is None else str(seeds) for seeds in needed)])
    print(markdown_table(["difference", *(f"deviation {deviation:g}" for deviation in given.deviation)], rows))
    print(f"\n{given.tasks} tasks; {LEAST_SEEDS} is the least with which a claim is judged")


if __name__ == "__main__":
    main()
