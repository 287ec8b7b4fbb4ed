"""How results are shown: Markdown tables that read as plain text, numbers as JSON, and figures of one palette.

Files depend on the numbers alone: the same numbers give the same file.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from meds_openrlhf.files import write_atomically


def markdown(table: pd.DataFrame, left: int = 1) -> str:
    """A Markdown table, padded to be readable as plain text; the first ``left`` columns are aligned left."""
    contents = (table.columns, *table.itertuples(index=False))
    rows = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in contents]
    widths = [max(3, *map(len, column)) for column in zip(*rows)]
    sides = ["<" if number < left else ">" for number in range(len(widths))]
    lines = [
        "| " + " | ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)) + " |"
        for row in rows
    ]
    rules = (f"-{'-' * width}{'-' if side == '<' else ':'}" for width, side in zip(widths, sides))
    return "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]])


def shown(value: float | None, form: str = ".2f") -> str:
    """Format a number for a table; None gives an empty string."""
    return "" if value is None else format(value, form)


def write_numbers(numbers: Mapping[str, object], path: Path) -> None:
    """Write the numbers as JSON. Raises ValueError for NaN, which JSON lacks; use None instead."""
    write_atomically(path, json.dumps(numbers, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


# Okabe and Ito's palette, which color-blind readers can distinguish, without its yellow (too light on white).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # for gray print; `look` shifts them every seven series
SUFFIXES = (".png", ".svg")
_DPI = 150
_COLUMNS = 3  # of panels
_LETTERS_PER_INCH = 12  # in the legend


def look(position: int) -> dict[str, Any]:
    """Color and marker of the series at ``position``, distinct for the first 49."""
    shifted = position + position // len(COLORS)
    return {"color": COLORS[position % len(COLORS)], "marker": MARKERS[shifted % len(MARKERS)], "markersize": 4}


def panels(
    titles: Sequence[str], *, width: float = 3.3, height: float = 2.7, xlabel: str = "", ylabel: str = ""
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per title, in rows of at most `_COLUMNS`; sizes are in inches, of a panel."""
    columns = min(_COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.3))
    figure.set_layout_engine("constrained", wspace=0.05, hspace=0.06)
    figure.supylabel(ylabel, fontsize=9)
    grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes, title in zip(grid, titles):
        axes.set_title(title, fontsize=10, fontweight="bold")
        axes.set_xlabel(xlabel, fontsize=9)  # the figure would put its own onto the legend
        axes.tick_params(labelsize=8, length=2)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[len(titles) :]:
        axes.set_axis_off()
    return figure, grid[: len(titles)]


def legend_below(figure: Figure, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Name the series by their looks below all panels, in as many columns as fit."""
    handles = [Line2D([], [], linewidth=1.6, **shape) for shape in looks.values()]
    fitting = int(figure.get_figwidth() * _LETTERS_PER_INCH / (max(map(len, looks)) + 6))
    columns = max(1, min(len(looks), fitting))
    figure.legend(handles, list(looks), loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def draw_curves(curves: Mapping[tuple[str, str], pd.Series], titles: Mapping[str, str], ylabel: str) -> Figure:
    """A panel per metric of ``titles`` that has curves, with a line per run; ``curves`` are by run and metric."""
    present, runs = {metric for _, metric in curves}, dict.fromkeys(run for run, _ in curves)
    shown = {metric: title for metric, title in titles.items() if metric in present}
    colors: dict[str, dict[str, Any]] = {
        run: {"color": COLORS[number % len(COLORS)]} for number, run in enumerate(runs)
    }
    figure, grid = panels(list(shown.values()), xlabel="training step", ylabel=ylabel)
    panel = dict(zip(shown, grid))
    for (run, metric), curve in curves.items():
        panel[metric].plot(curve.index, curve, **colors[run])
    legend_below(figure, colors)
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """Write the figure without dates or versions, so that the same numbers give the same file."""
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    metadata = {"Software": None} if path.suffix == ".png" else {"Date": None, "Creator": None}
    with matplotlib.rc_context({"svg.hashsalt": "analysis"}):
        figure.savefig(file, format=path.suffix[1:], dpi=_DPI, bbox_inches="tight", metadata=metadata)
    write_atomically(path, file.getvalue())
