"""Plot pass@k over k: a panel per benchmark and another for the average, a line with its interval per model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from meds_openrlhf.evaluation.results import AVERAGE, Comparison
from meds_openrlhf.stats.figures import legend_below, look, panels
from meds_openrlhf.stats.intervals import LEVEL
from meds_openrlhf.terminal import counted


def draw(comparison: Comparison) -> Figure:
    """Draw the plot; models without results on a benchmark are left out of its panel."""
    results, benchmarks = comparison.results.values(), comparison.benchmarks
    sizes = {result.benchmark: result.problems for result in results}
    titles = {name: f"{name} ({counted(sizes[name], 'problem')})" for name in benchmarks}
    if len(benchmarks) > 1 and any(benchmark == AVERAGE for _, benchmark in comparison.scores):
        titles[AVERAGE] = f"average ({counted(len(benchmarks), 'benchmark')})"
    figure, grid = panels(list(titles.values()), xlabel="k", ylabel="pass@k (%)")
    looks = {model: look(position) for position, model in enumerate(comparison.models)}
    for axes, benchmark in zip(grid, titles):
        found = {model: comparison.scores.get((model, benchmark)) for model in comparison.models}
        curves = {model: curve.loc["pass"] for model, curve in found.items() if curve is not None}
        for model, curve in curves.items():
            percent, color = 100 * curve, looks[model]["color"]
            # Thin edges separate bands whose fills overlap.
            band: dict[str, Any] = {
                "facecolor": to_rgba(color, 0.07),
                "edgecolor": to_rgba(color, 0.55),
                "linewidth": 0.6,
            }
            axes.fill_between(curve.index, percent.low, percent.high, **band)
            axes.plot(curve.index, percent.value, linewidth=1.6, **looks[model])
        _set_ticks(axes, sorted({k for curve in curves.values() for k in curve.index}))
    ns = sorted({result.n for result in results})
    figure.suptitle(f"n = {' and '.join(map(str, ns))}, bands: {100 * LEVEL:g} % intervals", fontsize=9)
    legend_below(figure, looks)
    return figure


def _set_ticks(axes: Axes, ks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    legible = [k for k, following in pairwise(ks) if following > 1.3 * k] + ks[-1:]  # 128 and 130 would overlap
    axes.set_xticks(legible, labels=[str(k) for k in legible])
    axes.minorticks_off()
    axes.set_xlim(ks[0] / 1.15, ks[-1] * 1.15)
