"""A run's metrics over its steps: as columns, as curves, and as a comparison of first and last steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runs.catalog import SUMMARY
from meds_openrlhf.runs.settings import names_of
from meds_openrlhf.step_log import StepLog

DIGITS = 6  # significant digits of a value
MOST_METRICS = 2_000
LONGEST_SECONDS = 1e10  # of a run; a timedelta holds a thousand times as many
WINDOW = 5  # number of first and of last steps that are averaged
Line = dict[str, float]


def history_of(lines: list[Line], most: int) -> dict[str, Any]:
    """The ``columns`` of metrics by name, with a value or None for each of at most ``most`` ``steps``.

    If there are more steps, each point is the mean of ``every`` of them.
    """
    every = max(-(-len(lines) // most), 1)
    points = [lines[begin : begin + every] for begin in range(0, len(lines), every)]
    names = sorted({name for line in lines for name in line} - {"step"})
    if len(names) > MOST_METRICS:
        raise ConfigError(
            "RUN", None, f"its logs have {len(names):,} metrics. A report shows at most {MOST_METRICS:,}."
        )
    columns = {name: [_mean(point, name) for point in points] for name in names}
    known = {name: column for name, column in columns.items() if any(value is not None for value in column)}
    return {"steps": [int(point[-1]["step"]) for point in points], "columns": known, "every": every}


def summary_of(lines: list[Line]) -> list[tuple[str, float | None, float | None, str]]:
    """Title, mean of the first steps, mean of the last steps, and unit of each metric of the summary that the run has.

    A row of the summary can name several metrics; the first one present is used.
    """
    rows: dict[str, tuple[str, float | None, float | None, str]] = {}
    for title, name, unit in SUMMARY:
        if title not in rows and any(_number(line, name) is not None for line in lines):
            rows[title] = title, _mean(lines[:WINDOW], name), _mean(lines[-WINDOW:], name), unit
    return list(rows.values())


def duration_of(lines: list[Line]) -> str | None:
    """The time that all steps took, as hours, minutes and seconds; None if no line says so."""
    seconds = [value for line in lines if (value := _number(line, "timing/step_total")) is not None]
    return str(timedelta(seconds=round(min(sum(seconds), LONGEST_SECONDS)))) if seconds else None


def _mean(lines: list[Line], name: str) -> float | None:
    """The mean of the finite values, rounded; None if there are none."""
    values = [value for line in lines if (value := _number(line, name)) is not None]
    return float(f"{math.fsum(value / len(values) for value in values):.{DIGITS}g}") if values else None


def _number(line: Line, name: str) -> float | None:
    value = line.get(name)
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if known else None


Curves = dict[tuple[str, str], "pd.Series[float]"]  # by the run's name and the metric, each indexed by step


def late_mean(values: Sequence[float] | pd.Series[float]) -> float:
    """Return the mean of the last quarter of the values (n,), n > 0, of at least one."""
    return float(np.mean(values[-max(len(values) // 4, 1) :]))


def logged_curves(runs: Sequence[Path], metrics: Sequence[str], none_logged: str) -> Curves:
    """The curves of those ``metrics`` that each run has.

    Raises ConfigError if a run has no metrics, a line of them is damaged, or, with the hint ``none_logged``, it has
    none of ``metrics``.
    """
    curves: Curves = {}
    for run, name in zip(runs, names_of(runs)):
        lines = StepLog(RunPaths(run).metrics).read()
        if not lines:
            problem = "has no metrics.jsonl with a step in it" if run.is_dir() else "does not exist"
            raise ConfigError("RUN", str(run), f"{problem}. Name the folder of a run that has trained.")
        table = pd.DataFrame(lines).set_index("step")
        logged = {
            (name, metric): table[metric].replace([np.inf, -np.inf], np.nan).dropna().astype(float)
            for metric in metrics
            if metric in table
        }
        if not logged:
            raise ConfigError("RUN", str(run), none_logged)
        curves |= logged
    return curves
