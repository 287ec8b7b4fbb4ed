"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[object]], sides: str = "") -> str:
    """The rows as lines with aligned columns; ``sides`` has ``<`` or ``>`` for each column, left by default."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    sides = sides or "<" * len(widths)
    lines = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def counted(number: int, noun: str) -> str:
    """A count with its noun: ``1 prompt``, ``2,000 prompts``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
