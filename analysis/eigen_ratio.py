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

from analysis.command_line import exit_code_of
from analysis.results import add_result_arguments, write_numbers
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.features.moments import NO_MOMENTS, Moments, merge_moments
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.rows import layer_logits_of
from meds_openrlhf.memory.stored import StoredMemory, open_memory
from meds_openrlhf.report.output import markdown_table, write_figure
from meds_openrlhf.runs.metrics import Curve, logged_curves
from meds_openrlhf.runs.settings import names_of
from meds_openrlhf.tracking.diversity import WINDOW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {span: f"meds/eigen_ratio_{span}" for span in ("all", "window", "step")}
NONE_LOGGED = "logged no eigen ratio. A baseline needs a memory of layer logits too: --meds.penalty.alpha 0"


def recomputed_curves(run: Path, name: str) -> list[Curve]:
    """`METRICS` from the memory's rows, at the steps with stored rows.

    Raises ConfigError if the memory stores no layer logits.
    """
    memory = open_memory(run)
    transform = _transform(memory)
    points: dict[str, list[tuple[int, float]]] = {}
    for step, moments in _moments_by_span(memory, transform):
        for span, of_span in moments.items():
            ratio = of_span.eigen_ratio()
            if ratio is not None:
                points.setdefault(METRICS[span], []).append((step, ratio))
    return [_curve(name, metric, points[metric]) for metric in METRICS.values() if metric in points]


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


def table_of(curves: Sequence[Curve]) -> str:
    """A line per run and span: the eigen ratio's course."""
    rows = []
    by_name = {(curve.run, curve.metric): curve for curve in curves}
    for run in dict.fromkeys(curve.run for curve in curves):
        for span, metric in METRICS.items():
            if ratio := by_name.get((run, metric)):
                course = (ratio.values[0], ratio.values.min(), ratio.values[-1], ratio.late)
                rows.append([run, span, str(len(ratio.steps)), *(f"{value:.4f}" for value in course)])
    return markdown_table(("run", "of", "steps", "first", "least", "last", "late"), rows)


def draw(curves: Sequence[Curve], recomputed: Sequence[Curve] = ()) -> Figure:
    """Draw a panel per span that any run has, with a line per run and dots for recomputed values."""
    from matplotlib.figure import Figure

    present = {curve.metric for curve in curves}
    spans = {span: metric for span, metric in METRICS.items() if metric in present}
    runs = list(dict.fromkeys(curve.run for curve in curves))
    figure = Figure(figsize=(4.2 * len(spans), 3.2), layout="constrained")
    (panels,) = figure.subplots(1, len(spans), squeeze=False)
    for axes, (span, metric) in zip(panels, spans.items()):
        for curve in (candidate for candidate in curves if candidate.metric == metric):
            axes.plot(curve.steps, curve.values, label=curve.run, color=f"C{runs.index(curve.run)}")
        for curve in (candidate for candidate in recomputed if candidate.metric == metric):
            axes.plot(curve.steps, curve.values, "o", markersize=3, color=f"C{runs.index(curve.run)}")
        axes.set(title=f"eigen ratio, {span}", xlabel="training step")
    panels[0].legend(fontsize="small")
    return figure


def _transform(memory: StoredMemory) -> FeatureTransform:
    """The run's feature transform."""
    if memory.format.holds_answers:
        hint = "remembers final answers, not layer logits. Leave out --recompute, or name another run."
        raise ConfigError("RUN", str(memory.paths.root), hint)
    return memory.transform(memory.settings())


def _moments_by_span(memory: StoredMemory, transform: FeatureTransform) -> Iterator[tuple[int, dict[str, Moments]]]:
    """Yield each of the run's own steps with stored rows, and the moments of its spans.

    Rows of the memory that this memory was branched from are included in "all", as in the run.
    """
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


def _curve(run: str, metric: str, points: list[tuple[int, float]]) -> Curve:
    steps, values = zip(*points)
    return Curve(run, metric, np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64))


def _as_numbers(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    return [{**asdict(curve), "steps": curve.steps.tolist(), "values": curve.values.tolist()} for curve in curves]


def parse_arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.eigen_ratio", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders of runs to compare")
    hint = "calculate it from the memories' rows as well, and say how far that is from what was logged"
    parser.add_argument("--recompute", action="store_true", help=hint)
    add_result_arguments(parser, "eigen_ratio")
    return parser.parse_args(command_line)


def compare(arguments: argparse.Namespace) -> None:
    """Print the table, and write the figure and the numbers."""
    curves = logged_curves(arguments.runs, [*METRICS.values()], NONE_LOGGED)
    recomputed: list[Curve] = []
    print(table_of(curves))
    if arguments.recompute:
        for run, name in zip(arguments.runs, names_of(arguments.runs)):
            recomputed += recomputed_curves(run, name)
        for metric, difference in largest_differences(curves, recomputed).items():
            print(f"{metric}: at most {difference:.1e} from what the memory's rows give")
    write_figure(draw(curves, recomputed), arguments.figure)
    write_numbers({"logged": _as_numbers(curves), "recomputed": _as_numbers(recomputed)}, arguments.json)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments = parse_arguments(command_line)
    return exit_code_of(lambda: compare(arguments))


if __name__ == "__main__":
    sys.exit(main())
