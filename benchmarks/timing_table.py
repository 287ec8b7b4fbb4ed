"""Times beside each other, as a row of a Markdown table that says whether its bounds hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One row of the table: seconds per round (r,), those of what it is compared with, and what is asked of them."""

    name: str
    seconds: Floats
    compared: Floats | None = None
    at_most_ratio: float | None = None
    at_most_seconds: float | None = None

    def __str__(self) -> str:
        """As a row of a Markdown table."""
        bounds, met = [], True
        ratio = None if self.compared is None else np.median(self.seconds / self.compared)
        if ratio is not None and self.at_most_ratio is not None:
            bounds.append(f"{self.at_most_ratio:g} x")
            met = met and ratio <= self.at_most_ratio
        if self.at_most_seconds is not None:
            bounds.append(f"{1e3 * self.at_most_seconds:,.0f} ms")
            met = met and np.median(self.seconds) <= self.at_most_seconds
        verdict = "" if not bounds else "met" if met else "missed"
        compared = "" if self.compared is None else spread(self.compared)
        cells = [self.name, spread(self.seconds), compared, "" if ratio is None else f"{ratio:.3g}"]
        return f"| {' | '.join([*cells, ', '.join(bounds), verdict])} |"


def spread(seconds: Floats) -> str:
    """Median milliseconds, and in brackets the quartiles."""
    low, median, high = (1e3 * value for value in np.quantile(seconds, [0.25, 0.5, 0.75]))
    return f"{median:,.1f} ({low:,.1f} to {high:,.1f})"


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds that ``work`` took, and its result."""
    started = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - started, result
