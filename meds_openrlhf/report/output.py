"""Tables and figures as files: Markdown that reads as plain text, and PNG or SVG that depend on the numbers alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meds_openrlhf.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 150


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
