"""Plot pass@k over k: a panel per benchmark and another for the average, a line with its interval per model."""

from __future__ import annotations

import io
import math
from itertools import pairwise
from typing import TYPE_CHECKING

from meds_openrlhf.evaluation.intervals import LEVEL
from meds_openrlhf.evaluation.results import Comparison, Estimate, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can distinguish, without its yellow (too light on white).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # for grey print; `_look` shifts them every seven models
PANELS_PER_ROW = 3
_WIDTH, _HEIGHT = 3.3, 2.7  # of a panel, inches
_CAPTION = 0.3  # inches above the panels
_DPI = 150
_LETTERS_PER_INCH = 12  # in the legend


def pass_at_k_png(comparison: Comparison) -> bytes:
    """Render the plot as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure(comparison)
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    # Leave out matplotlib's version, so that the same results give the same bytes.
    figure.savefig(file, format="png", dpi=_DPI, bbox_inches="tight", metadata={"Software": None})
    return file.getvalue()


def _figure(comparison: Comparison) -> Figure:
    from matplotlib.figure import Figure

    panels = _panels(comparison)
    columns = min(PANELS_PER_ROW, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows + _CAPTION))
    figure.set_layout_engine("constrained", wspace=0.05, hspace=0.06)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for position, (title, curves) in enumerate(panels.items()):
        _draw_panel(grid[position], title, curves, comparison.models)
        if position % columns == 0:
            grid[position].set_ylabel("pass@k (%)", fontsize=9)
        if position + columns >= len(panels):
            grid[position].set_xlabel("k", fontsize=9)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(_caption(comparison), fontsize=9)
    _add_legend(figure, comparison.models)
    return figure


def _caption(comparison: Comparison) -> str:
    ns = sorted({result.n for result in comparison.results.values()})
    return f"n = {' and '.join(map(str, ns))}, bands: {100 * LEVEL:g} % intervals"


def _panels(comparison: Comparison) -> dict[str, dict[str, dict[int, Estimate]]]:
    """Each panel's pass@k by model and k, keyed by the panel's title; models without results are left out."""
    sizes = {result.benchmark: result.problems for result in comparison.results.values()}
    panels = {
        f"{benchmark} ({counted(sizes[benchmark], 'problem')})": {
            model: comparison.results[model, benchmark].pass_at
            for model in comparison.models
            if (model, benchmark) in comparison.results
        }
        for benchmark in comparison.benchmarks
    }
    if len(panels) > 1 and comparison.averages:
        panels[f"average ({counted(len(panels), 'benchmark')})"] = {
            model: curves.pass_at for model, curves in comparison.averages.items()
        }
    return panels


def _draw_panel(axes: Axes, title: str, curves: dict[str, dict[int, Estimate]], models: list[str]) -> None:
    from matplotlib.colors import to_rgba

    for model, by_k in curves.items():
        color, marker = _look(models.index(model))
        # Thin edges separate bands whose fills overlap.
        ks, estimates = list(by_k), list(by_k.values())
        axes.fill_between(
            ks,
            [100 * e.low for e in estimates],
            [100 * e.high for e in estimates],
            facecolor=to_rgba(color, 0.07),
            edgecolor=to_rgba(color, 0.55),
            linewidth=0.6,
        )
        axes.plot(ks, [100 * e.value for e in estimates], color=color, marker=marker, markersize=4, linewidth=1.6)
    _dress(axes, title, sorted({k for by_k in curves.values() for k in by_k}))


def _dress(axes: Axes, title: str, ks: list[int]) -> None:
    axes.set_title(title, fontsize=10, fontweight="bold")
    axes.set_xscale("log", base=2)
    legible = [k for k, following in pairwise(ks) if following > 1.3 * k] + ks[-1:]  # 128 and 130 would overlap
    axes.set_xticks(legible, labels=[str(k) for k in legible])
    axes.minorticks_off()
    axes.set_xlim(ks[0] / 1.15, ks[-1] * 1.15)
    axes.tick_params(labelsize=8, length=2)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(figure: Figure, models: list[str]) -> None:
    from matplotlib.lines import Line2D

    looks = [_look(position) for position in range(len(models))]
    handles = [Line2D([], [], color=color, marker=marker, markersize=5, linewidth=1.6) for color, marker in looks]
    fitting = int(figure.get_figwidth() * _LETTERS_PER_INCH / (max(map(len, models)) + 6))
    columns = max(1, min(len(models), fitting))
    figure.legend(handles, models, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _look(position: int) -> tuple[str, str]:
    """Color and marker of the model at ``position``, distinct for the first 49 models."""
    return COLORS[position % len(COLORS)], MARKERS[(position + position // len(COLORS)) % len(MARKERS)]
