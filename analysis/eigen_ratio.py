"""How much do a policy's errors all look alike inside? The top-1 eigen ratio of runs over steps (Section 4.3).

The ratio is the largest eigenvalue over the sum of all eigenvalues of the covariance of layer logits of remembered
rollouts. Lower is more diverse; the paper's MEDS stays below DAPO at later steps. It is computed for all rollouts so
far, a sliding window of steps, and each step.

    python -m analysis.eigen_ratio runs/cpu-meds runs/cpu-dapo
    python -m analysis.eigen_ratio runs/cpu-meds --recompute

With --recompute, it is recomputed from the memory's rows and compared with the logged values.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd

from analysis.command_line import Command, Finding
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.features.moments import NO_MOMENTS, WINDOW, Moments, merge_moments
from meds_openrlhf.memory.rows import layer_logits_of
from meds_openrlhf.memory.stored import StoredMemory, open_memory
from meds_openrlhf.options import folders, option
from meds_openrlhf.results.figures import COLORS, label_axes, legend_below, panels
from meds_openrlhf.results.tables import markdown
from meds_openrlhf.runs.metrics import Curves, late_mean, logged_curves
from meds_openrlhf.runs.settings import names_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {span: f"meds/eigen_ratio_{span}" for span in ("all", "window", "step")}
NONE_LOGGED = "logged no eigen ratio. A baseline needs a memory of layer logits too: --meds.penalty.alpha 0"


def analyse(
    runs: Annotated[Sequence[Path], folders("folders of runs to compare")],
    recompute: Annotated[
        bool, option("also compute the ratios from the memories' rows, and compare", action="store_true")
    ] = False,
) -> Finding:
    """The course of each run's eigen ratios, and with ``recompute`` how far the logged values are from the rows'."""
    curves = logged_curves(runs, [*METRICS.values()], NONE_LOGGED)
    lines = [markdown(table_of(curves))]
    recomputed: Curves = {}
    if recompute:
        for run, name in zip(runs, names_of(runs)):
            recomputed |= recomputed_curves(run, name)
        for metric, difference in largest_differences(curves, recomputed).items():
            lines.append(f"{metric}: at most {difference:.1e} from what the memory's rows give")
    numbers = {"logged": _as_numbers(curves), "recomputed": _as_numbers(recomputed)}
    return Finding("\n".join(lines), numbers, draw(curves, recomputed))


def recomputed_curves(run: Path, name: str) -> Curves:
    """`METRICS` from the memory's rows, at the steps with stored rows.

    Raises ConfigError if the memory stores no layer logits.
    """
    memory = open_memory(run)
    if memory.format.holds_answers:
        hint = "remembers final answers, not layer logits. Leave out --recompute, or name another run."
        raise ConfigError("RUN", str(memory.paths.root), hint)
    ratios = {
        step: {METRICS[span]: of_span.eigen_ratio() for span, of_span in moments.items()}
        for step, moments in _moments_by_span(memory)
    }
    table = pd.DataFrame.from_dict(ratios, orient="index", columns=[*METRICS.values()], dtype=float)
    return {(name, metric): curve.dropna() for metric, curve in table.items() if curve.notna().any()}


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


def largest_differences(logged: Curves, recomputed: Curves) -> dict[str, float]:
    """The largest difference of each metric over the steps with a logged and a recomputed value, if there are any."""
    shared = {key: (logged[key] - recomputed[key]).abs().dropna() for key in recomputed if key in logged}
    return {metric: float(differences.max()) for (_, metric), differences in shared.items() if len(differences)}


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


def draw(curves: Curves, recomputed: Curves) -> Figure:
    """Draw a panel per span that any run has, with a line per run and dots for recomputed values."""
    present = {metric for _, metric in curves}
    spans = {metric: f"eigen ratio, {span}" for span, metric in METRICS.items() if metric in present}
    colors = {run: COLORS[number % len(COLORS)] for number, run in enumerate(dict.fromkeys(run for run, _ in curves))}
    figure, grid = panels(list(spans.values()))
    panel = dict(zip(spans, grid))
    for (run, metric), curve in curves.items():
        panel[metric].plot(curve.index, curve, color=colors[run])
    for (run, metric), curve in recomputed.items():
        if metric in panel:
            panel[metric].plot(curve.index, curve, "o", markersize=3, color=colors[run])
    label_axes(grid, "training step", "top-1 eigen ratio")
    legend_below(figure, {run: {"color": color} for run, color in colors.items()})
    return figure


def _as_numbers(curves: Curves) -> list[dict[str, Any]]:
    return [
        {"run": run, "metric": metric, "steps": curve.index.tolist(), "values": curve.tolist()}
        for (run, metric), curve in curves.items()
    ]


main = Command("eigen_ratio", __doc__, analyse)

if __name__ == "__main__":
    sys.exit(main())
