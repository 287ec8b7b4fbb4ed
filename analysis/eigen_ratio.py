"""How much do a policy's errors all look alike inside? The top-1 eigen ratio of runs over steps (Section 4.3).

The ratio is the largest eigenvalue over the sum of all eigenvalues of the covariance of layer logits of remembered
rollouts. Lower is more diverse; the paper's MEDS stays below DAPO at later steps. It is computed for all rollouts so
far, a sliding window of steps, and each step.

    python -m analysis.eigen_ratio runs/cpu-meds runs/cpu-dapo
    python -m analysis.eigen_ratio runs/cpu-meds --recompute

With --recompute, it is recomputed from the memory's rows and compared with the logged values.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.command_line import Command, Finding
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.features.moments import NO_MOMENTS, Moments, merge_moments
from meds_openrlhf.memory.rows import layer_logits_of
from meds_openrlhf.memory.stored import StoredMemory, open_memory
from meds_openrlhf.results.figures import COLORS, label_axes, legend_below, panels
from meds_openrlhf.results.tables import markdown
from meds_openrlhf.runs.metrics import Curve, logged_curves
from meds_openrlhf.runs.settings import names_of
from meds_openrlhf.tracking.metrics import WINDOW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {span: f"meds/eigen_ratio_{span}" for span in ("all", "window", "step")}
NONE_LOGGED = "logged no eigen ratio. A baseline needs a memory of layer logits too: --meds.penalty.alpha 0"


def analyse(runs: Sequence[Path], recompute: bool = False) -> Finding:
    """The course of each run's eigen ratios, and with ``recompute`` how far the logged values are from the rows'."""
    curves = logged_curves(runs, [*METRICS.values()], NONE_LOGGED)
    lines, recomputed = [markdown(table_of(curves))], list[Curve]()
    if recompute:
        for run, name in zip(runs, names_of(runs)):
            recomputed += recomputed_curves(run, name)
        for metric, difference in largest_differences(curves, recomputed).items():
            lines.append(f"{metric}: at most {difference:.1e} from what the memory's rows give")
    numbers = {"logged": _as_numbers(curves), "recomputed": _as_numbers(recomputed)}
    return Finding("\n".join(lines), numbers, draw(curves, recomputed))


def recomputed_curves(run: Path, name: str) -> list[Curve]:
    """`METRICS` from the memory's rows, at the steps with stored rows.

    Raises ConfigError if the memory stores no layer logits.
    """
    memory = open_memory(run)
    if memory.format.holds_answers:
        hint = "remembers final answers, not layer logits. Leave out --recompute, or name another run."
        raise ConfigError("RUN", str(memory.paths.root), hint)
    points: dict[str, list[tuple[int, float]]] = {}
    for step, moments in _moments_by_span(memory):
        for span, of_span in moments.items():
            ratio = of_span.eigen_ratio()
            if ratio is not None:
                points.setdefault(METRICS[span], []).append((step, ratio))
    curves = []
    for metric in METRICS.values():
        if metric in points:
            steps, values = zip(*points[metric])
            curves.append(Curve(name, metric, np.array(steps, np.int64), np.array(values, np.float64)))
    return curves


def _moments_by_span(memory: StoredMemory) -> Iterator[tuple[int, dict[str, Moments]]]:
    """Yield each of the run's own steps with stored rows, and the moments of its spans.

    Rows of the memory that this memory was branched from are included in "all", as in the run.
    """
    transform = memory.transform(memory.settings())
    total, recent = NO_MOMENTS, deque[tuple[int, Moments]]()
    for stored_step, rows in memory.rows_by_step():
        step = stored_step - memory.format.step_offset
        moments = Moments.of(transform.select(layer_logits_of(rows)))
        total = total.merge(moments)
        if step < 1:
            continue
        recent.append((step, moments))
        while recent[0][0] <= step - WINDOW:
            recent.popleft()
        yield step, {"all": total, "step": moments, "window": merge_moments([moments for _, moments in recent])}


def largest_differences(logged: Sequence[Curve], recomputed: Sequence[Curve]) -> dict[str, float]:
    """The largest difference of each metric over the steps with a logged and a recomputed value, if there are any."""
    differences = {}
    for computed in recomputed:
        other = next((curve for curve in logged if (curve.run, curve.metric) == (computed.run, computed.metric)), None)
        if other is not None:
            _, here, there = np.intersect1d(computed.steps, other.steps, return_indices=True)
            if len(here):
                differences[computed.metric] = float(np.abs(computed.values[here] - other.values[there]).max())
    return differences


def table_of(curves: Sequence[Curve]) -> pd.DataFrame:
    """A line per run and span: the eigen ratio's course."""
    rows = []
    by_name = {(curve.run, curve.metric): curve for curve in curves}
    for run in dict.fromkeys(curve.run for curve in curves):
        for span, metric in METRICS.items():
            if ratio := by_name.get((run, metric)):
                course = (ratio.values[0], ratio.values.min(), ratio.values[-1], ratio.late)
                rows.append([run, span, len(ratio.steps), *(f"{value:.4f}" for value in course)])
    return pd.DataFrame(rows, columns=["run", "of", "steps", "first", "least", "last", "late"])


def draw(curves: Sequence[Curve], recomputed: Sequence[Curve] = ()) -> Figure:
    """Draw a panel per span that any run has, with a line per run and dots for recomputed values."""
    present = {curve.metric for curve in curves}
    spans = {metric: f"eigen ratio, {span}" for span, metric in METRICS.items() if metric in present}
    runs = list(dict.fromkeys(curve.run for curve in curves))
    colors = {run: COLORS[number % len(COLORS)] for number, run in enumerate(runs)}
    figure, grid = panels(list(spans.values()))
    panel = dict(zip(spans, grid))
    for curve in curves:
        panel[curve.metric].plot(curve.steps, curve.values, color=colors[curve.run])
    for curve in recomputed:
        if curve.metric in panel:
            panel[curve.metric].plot(curve.steps, curve.values, "o", markersize=3, color=colors[curve.run])
    label_axes(grid, "training step", "top-1 eigen ratio")
    legend_below(figure, {run: {"color": color} for run, color in colors.items()})
    return figure


def _as_numbers(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    return [{**asdict(curve), "steps": curve.steps.tolist(), "values": curve.values.tolist()} for curve in curves]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `analyse`."""
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders of runs to compare")
    hint = "calculate it from the memories' rows as well, and say how far that is from what was logged"
    parser.add_argument("--recompute", action="store_true", help=hint)


main = Command("eigen_ratio", __doc__, add_arguments, analyse, "eigen_ratio")

if __name__ == "__main__":
    sys.exit(main())
