"""How much do a policy's errors all look alike inside? The top-1 eigen ratio of runs over steps (Section 4.3).

The ratio is the largest eigenvalue over the sum of all eigenvalues of the covariance of layer logits of remembered
rollouts. Lower is more diverse; the paper's MEDS stays below DAPO at later steps. It is computed for all rollouts so
far, a sliding window of steps, and each step.

    python -m analysis.eigen_ratio runs/cpu-meds runs/cpu-dapo
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd

from analysis.command_line import Command, Finding
from meds_openrlhf.options import folders
from meds_openrlhf.runs.metrics import Curves, late_mean, logged_curves
from meds_openrlhf.stats.presentation import draw_curves, markdown

METRICS = {span: f"meds/eigen_ratio_{span}" for span in ("all", "window", "step")}
NONE_LOGGED = "logged no eigen ratio. A baseline needs a memory of layer logits too: --meds.penalty.alpha 0"


def analyze(runs: Annotated[Sequence[Path], folders("folders of runs to compare")]) -> Finding:
    """The course of each run's eigen ratios."""
    curves = logged_curves(runs, [*METRICS.values()], NONE_LOGGED)
    logged = [
        {"run": run, "metric": metric, "steps": curve.index.tolist(), "values": curve.tolist()}
        for (run, metric), curve in curves.items()
    ]
    titles = {metric: f"eigen ratio, {span}" for span, metric in METRICS.items()}
    figure = draw_curves(curves, titles, "top-1 eigen ratio")
    return Finding(markdown(table_of(curves)), {"logged": logged}, figure)


def table_of(curves: Curves) -> pd.DataFrame:
    """A line per run and span: the eigen ratio's course."""
    rows = []
    for run in dict.fromkeys(run for run, _ in curves):
        for span, metric in METRICS.items():
            if (run, metric) in curves:
                ratio = curves[run, metric].to_numpy()
                course = (ratio[0], ratio.min(), ratio[-1], late_mean(ratio))
                rows.append([run, span, len(ratio), *(f"{value:.4f}" for value in course)])
    return pd.DataFrame(rows, columns=["run", "of", "steps", "first", "least", "last", "late"])


main = Command("eigen_ratio", __doc__, analyze)

if __name__ == "__main__":
    sys.exit(main())
