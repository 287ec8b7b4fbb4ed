"""The layer logits of some of a cluster's members and of the rows nearest to it, quantized to a byte each."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.report.error_rows import PromptLogits
from meds_openrlhf.report.examples import spread

LEVELS = 255


def heatmap_of(prompt: PromptLogits, member: NDArray[np.bool_], rows: int) -> dict[str, object]:
    """Up to ``rows`` members, spread over time, and up to ``rows`` others, nearest to the members' mean first.

    ``m`` and ``o`` are the indices of members and others among the prompt's rows; ``q`` has a byte for each of these
    rows and layers, row by row, in base64. A value is ``lo + (hi - lo) * byte / 255``, with ``lo`` and ``hi`` of its
    layer.
    """
    inside, outside = np.flatnonzero(member), np.flatnonzero(~member)
    shown = spread(inside, rows)
    center = prompt.features[inside].mean(axis=0)
    distance = ((prompt.features[outside] - center) ** 2).sum(axis=1)
    nearest = outside[np.argsort(distance, kind="stable")[:rows]]
    values = prompt.logits[np.concatenate([shown, nearest])].astype(np.float64)
    low, high = values.min(axis=0), values.max(axis=0)
    levels = np.round((values - low) / np.where(high > low, high - low, 1.0) * LEVELS).astype(np.uint8)
    low, high = ([float(f"{value:.5g}") for value in bound] for bound in (low, high))
    coded = base64.b64encode(levels.tobytes()).decode()
    return {"m": shown.tolist(), "o": nearest.tolist(), "lo": low, "hi": high, "q": coded}
