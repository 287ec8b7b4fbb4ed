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

from analysis.command_line import exit_code_of, positive
from analysis.results import write_numbers
from meds_openrlhf.report.output import markdown_table, shown
from meds_openrlhf.runs.metrics import Curve, logged_curves

METRIC = "timing/step_total"  # seconds


def minutes_of(curve: Curve, steps: int) -> float | None:
    """The minutes a step, mean of a run's first ``steps`` steps; None if it has not all of them."""
    first = curve.values[curve.steps <= steps]
    return float(first.mean()) / 60 if len(first) == steps else None


def table_of(curves: Sequence[Curve], steps: Sequence[int]) -> str:
    """A row per run: minutes a step over so many steps, and as a ratio to the first run."""
    header = ["run", *(f"{kind}, {count} steps" for count in steps for kind in ("minutes a step", "ratio"))]
    rows = []
    for curve in curves:
        cells = [curve.run]
        for count in steps:
            minutes, first = minutes_of(curve, count), minutes_of(curves[0], count)
            cells += [shown(minutes), shown(minutes and first and minutes / first)]
        rows.append(cells)
    return markdown_table(header, rows)


def parse_arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.cost", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders of runs; the first is the measure")
    parser.add_argument(
        "--steps", metavar="N", nargs="+", type=positive, default=[50, 100], help="(50 100, the paper's)"
    )
    parser.add_argument("--json", type=Path, default=Path("cost.json"), help="the numbers; default: %(default)s")
    return parser.parse_args(command_line)


def compare(arguments: argparse.Namespace) -> None:
    """Print the table, and write the numbers."""
    curves = logged_curves(arguments.runs, [METRIC], f"has no {METRIC} in its metrics.jsonl")
    print(table_of(curves, arguments.steps))
    minutes = {curve.run: {str(count): minutes_of(curve, count) for count in arguments.steps} for curve in curves}
    write_numbers({"minutes_a_step": minutes}, arguments.json)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments = parse_arguments(command_line)
    return exit_code_of(lambda: compare(arguments))


if __name__ == "__main__":
    sys.exit(main())
