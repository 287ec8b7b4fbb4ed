"""What the benchmarks share: options, measured time, and rows of Markdown tables that say whether bounds are met."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

HEADER = "| measured | | compared with | ratio | at most | |\n|---|---|---|---|---|---|"


def make_parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each quantity is measured")
    parser.add_argument("--quick", action="store_true", help="minuscule sizes; bounds mean nothing")
    return parser


def machine() -> str:
    """Describe the machine."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n"


@dataclass(frozen=True)
class Line:
    """A row of a table: a value per round (r,), those of what it is compared with, and the bounds of the medians."""

    name: str
    values: Sequence[float]
    unit: str = "ms"
    compared: Sequence[float] | None = None
    at_most: float | None = None
    at_most_ratio: float | None = None

    def __str__(self) -> str:
        """Return the row in Markdown."""
        compared, ratio = "", ""
        bounds: dict[str, bool] = {}  # whether each is met
        if self.compared is not None:
            median = np.median(np.divide(self.values, self.compared))
            compared, ratio = f"{spread(self.compared)} {self.unit}", f"{median:.4g}"
            if self.at_most_ratio is not None:
                bounds[f"{self.at_most_ratio:.3g} x"] = bool(median <= self.at_most_ratio)
        if self.at_most is not None:
            bounds[f"{self.at_most:,g} {self.unit}"] = bool(np.median(self.values) <= self.at_most)
        verdict = "" if not bounds else "met" if all(bounds.values()) else "missed"
        cells = [self.name, f"{spread(self.values)} {self.unit}", compared, ratio, ", ".join(bounds), verdict]
        return f"| {' | '.join(cells)} |"


def spread(values: Sequence[float], form: str = ",.4g") -> str:
    """Return the median, and in brackets the quartiles."""
    low, median, high = (format(value, form) for value in np.quantile(values, [0.25, 0.5, 0.75]))
    return f"{median} ({low} to {high})"


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Return the milliseconds that ``work`` took, and its result."""
    started = time.perf_counter()
    result = work(*arguments)
    return 1e3 * (time.perf_counter() - started), result
