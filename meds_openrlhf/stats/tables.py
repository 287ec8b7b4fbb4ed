"""Tables as pandas data frames: Markdown that reads as plain text, and numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

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
