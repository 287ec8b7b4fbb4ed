"""What does a method cost? Minutes a step of several runs side by side, mean of the first steps (Section 4.2).

    python -m analysis.cost runs/dapo runs/meds --steps 50 100

A run without so many steps has an empty cell. Evaluations, checkpoints and pauses between a stop and a resume do not
count, only steps. (In asynchronous runs a step is the time since the one before, which includes checkpoints.)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.command_line import Command, Finding, positive
from meds_openrlhf.results.tables import markdown, shown
from meds_openrlhf.runs.metrics import Curve, logged_curves

METRIC = "timing/step_total"  # seconds


def analyse(runs: Sequence[Path], steps: Sequence[int] = (50, 100)) -> Finding:
    """A row per run: minutes a step over so many steps, and as a ratio to the first run."""
    curves = logged_curves(runs, [METRIC], f"has no {METRIC} in its metrics.jsonl")
    minutes = {curve.run: {str(count): _minutes(curve, count) for count in steps} for curve in curves}
    measure = minutes[curves[0].run]
    table = pd.DataFrame({"run": list(minutes)})
    for count in map(str, steps):
        table[f"minutes a step, {count} steps"] = [shown(found[count]) for found in minutes.values()]
        table[f"ratio, {count} steps"] = [_ratio(found[count], measure[count]) for found in minutes.values()]
    return Finding(markdown(table), {"minutes_a_step": minutes})


def _minutes(curve: Curve, steps: int) -> float | None:
    """The minutes a step, mean of a run's first ``steps`` steps; None if it has not all of them."""
    first = curve.values[curve.steps <= steps]
    return float(first.mean()) / 60 if len(first) == steps else None


def _ratio(minutes: float | None, measure: float | None) -> str:
    return shown(minutes / measure if minutes and measure else None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `analyse`."""
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders of runs; the first is the measure")
    parser.add_argument("--steps", metavar="N", nargs="+", type=positive, help="(50 100, the paper's)")


main = Command("cost", __doc__, add_arguments, analyse, "cost", draws=False)

if __name__ == "__main__":
    sys.exit(main())
