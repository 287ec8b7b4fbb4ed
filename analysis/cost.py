"""What does a method cost? Minutes per step of several runs, mean over the first steps (Section 4.2).

    python -m analysis.cost runs/dapo runs/meds --steps 50 100

The cell is empty if the run is shorter. Evaluations, checkpoints and pauses between a stop and a resume do not
count, only steps. (In asynchronous runs a step is the time since the one before, which includes checkpoints.)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd

from analysis.command_line import Command, Finding
from meds_openrlhf.options import folders, option, positive
from meds_openrlhf.runs.metrics import logged_curves
from meds_openrlhf.stats.presentation import markdown, shown

METRIC = "timing/step_total"  # seconds


def analyze(
    runs: Annotated[Sequence[Path], folders("folders of runs; ratios are to the first")],
    steps: Annotated[Sequence[int], option("average over first steps", "N", nargs="+", type=positive)] = (50, 100),
) -> Finding:
    """A row per run: mean minutes per step over its first steps, and their ratio to the first run."""
    curves = logged_curves(runs, [METRIC], f"has no {METRIC} in its metrics.jsonl")
    minutes = {run: {str(count): _minutes(curve, count) for count in steps} for (run, _), curve in curves.items()}
    table = pd.DataFrame({"run": list(minutes)})
    for count in map(str, steps):
        column = [found[count] for found in minutes.values()]
        first = column[0]
        table[f"minutes a step, {count} steps"] = [*map(shown, column)]
        table[f"ratio, {count} steps"] = [shown(of_run and first and of_run / first) for of_run in column]
    return Finding(markdown(table), {"minutes_a_step": minutes})


def _minutes(seconds: pd.Series[float], steps: int) -> float | None:
    """The minutes a step, mean of a run's first ``steps`` steps; None if it has not all of them."""
    first = seconds[seconds.index <= steps]
    return float(first.mean()) / 60 if len(first) == steps else None


main = Command("cost", __doc__, analyze, draws=False)

if __name__ == "__main__":
    sys.exit(main())
