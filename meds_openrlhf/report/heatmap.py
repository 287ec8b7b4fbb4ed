"""The layer logits of some of a cluster's members and of the rows nearest to it, quantized to a byte each."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.report.error_rows import PromptLogits

LEVELS = 255


@dataclass(frozen=True)
class Heatmap:
    """``members`` and ``neighbours`` are indices into the prompt's rows; ``levels`` (rows, N) uint8 has members first.

    A value is ``low + (high - low) * level / 255``, with its layer's entries of ``low`` and ``high`` (N,).
    """

    members: list[int]
    neighbours: list[int]
    low: list[float]
    high: list[float]
    levels: NDArray[np.uint8]

    def as_json(self) -> dict[str, object]:
        """The JSON for the page, with the levels in base64, row by row."""
        coded = base64.b64encode(self.levels.tobytes()).decode()
        return {"m": self.members, "o": self.neighbours, "lo": self.low, "hi": self.high, "q": coded}


def heatmap_of(prompt: PromptLogits, member: NDArray[np.bool_], rows: int) -> Heatmap:
    """Up to ``rows`` members, spread over time, and up to ``rows`` others, nearest to the members' mean first."""
    inside, outside = np.flatnonzero(member), np.flatnonzero(~member)
    shown = inside[np.unique(np.linspace(0, len(inside) - 1, min(rows, len(inside))).round().astype(np.int64))]
    center = prompt.features[inside].mean(axis=0)
    distance = ((prompt.features[outside] - center) ** 2).sum(axis=1)
    nearest = outside[np.argsort(distance, kind="stable")[:rows]]
    values = prompt.logits[np.concatenate([shown, nearest])].astype(np.float64)
    low, high = values.min(axis=0), values.max(axis=0)
    levels = np.round((values - low) / np.where(high > low, high - low, 1.0) * LEVELS).astype(np.uint8)
    return Heatmap(shown.tolist(), nearest.tolist(), _short(low), _short(high), levels)


def _short(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]
