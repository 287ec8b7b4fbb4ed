"""A run's metrics as curves over its training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.history import read_lines
from meds_openrlhf.report.run_names import names_of


@dataclass(frozen=True)
class Curve:
    """A metric of a run: ``values`` (n,) at the ``steps`` (n,) that have it."""

    run: str
    metric: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def late(self) -> float:
        """Mean over the last quarter of the steps, at least one step."""
        return float(self.values[-max(len(self.values) // 4, 1) :].mean())


def curves_of(run: Path, name: str, metrics: Sequence[str]) -> list[Curve]:
    """Curves of those ``metrics`` that the run has; ``name`` is the run's name.

    Raises ConfigError if the folder has no metrics, or a line of them is damaged.
    """
    lines = read_lines(RunPaths(run).metrics)
    if not lines:
        problem = "has no metrics.jsonl with a step in it" if run.is_dir() else "does not exist"
        raise ConfigError("RUN", str(run), f"{problem}. Name the folder of a run that has trained.")
    curves = []
    for metric in metrics:
        having = [line for line in lines if metric in line]
        if having:
            steps = np.array([line["step"] for line in having], dtype=np.int64)
            curves.append(Curve(name, metric, steps, np.array([line[metric] for line in having], dtype=np.float64)))
    return curves


def logged_curves(runs: Sequence[Path], metrics: Sequence[str], none_logged: str) -> list[Curve]:
    """The curves of ``metrics`` of all runs. Raises ConfigError, with the hint ``none_logged``, for a run with none."""
    curves: list[Curve] = []
    for run, name in zip(runs, names_of(runs)):
        found = curves_of(run, name, metrics)
        if not found:
            raise ConfigError("RUN", str(run), none_logged)
        curves += found
    return curves
