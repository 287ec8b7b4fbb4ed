"""Output of the scripts: a table on the screen, a figure in the format of its suffix, and the numbers as JSON."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meds_openrlhf.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_SUFFIXES = (".png", ".svg")
_DPI = 150


def add_result_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Add ``--figure`` and ``--json``, files in the working directory by default."""
    parser.add_argument(
        "--figure", type=figure_path, default=Path(f"{name}.png"), help="PNG or SVG by suffix; default: %(default)s"
    )
    parser.add_argument(
        "--json", type=Path, default=Path(f"{name}.json"), help="the numbers of the table; default: %(default)s"
    )


def figure_path(text: str) -> Path:
    """An argument type: the path of a figure. Rejects other suffixes before any work is done."""
    path = Path(text)
    if path.suffix not in FIGURE_SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r} is no figure; end its name with {' or '.join(FIGURE_SUFFIXES)}")
    return path


def write_figure(figure: Figure, path: Path) -> None:
    """Write the figure without dates or versions, so that the same numbers give the same file."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    file = io.BytesIO()
    metadata = {"Software": None} if path.suffix == ".png" else {"Date": None, "Creator": None}
    with matplotlib.rc_context({"svg.hashsalt": "analysis"}):
        figure.savefig(file, format=path.suffix[1:], dpi=_DPI, bbox_inches="tight", metadata=metadata)
    write_atomically(path, file.getvalue())


def write_numbers(numbers: Mapping[str, object], path: Path) -> None:
    """Write the numbers as JSON. Raises ValueError for NaN, which JSON lacks; use None instead."""
    write_atomically(path, json.dumps(numbers, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], sides: str = "") -> str:
    """A Markdown table, padded to be readable as plain text; the first column is aligned left, the others right.

    ``sides`` says otherwise, with ``<`` or ``>`` for each column.
    """
    widths = [max(3, *map(len, column)) for column in zip(header, *rows)]
    sides = sides or "<" + ">" * (len(header) - 1)
    lines = [
        "| " + " | ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)) + " |"
        for row in (header, *rows)
    ]
    rules = (f"-{'-' * width}{'-' if side == '<' else ':'}" for width, side in zip(widths, sides))
    return "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]])


def shown(value: float | None, form: str = ".2f") -> str:
    """Format a number for a table; None gives an empty string."""
    return "" if value is None else format(value, form)
