"""Diversity of the policy's reasoning over steps: eigen ratios of the layer logits of wrong and of right rollouts.

The memory's shards keep the moments of the stored (wrong) rollouts. Right rollouts are not stored, so this module keeps
their moments, and those of the sliding window. Checkpoints include them.
"""

from __future__ import annotations

from collections import deque
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.features.moments import NO_MOMENTS, Moments, merge_moments
from meds_openrlhf.files import write_atomically

WINDOW = 50  # steps


class DiversityTracker:
    """Computes metrics of each step's features (n, d): of the step, of the last ``window`` steps, and of all steps."""

    def __init__(self, window: int = WINDOW) -> None:
        self._remembered: deque[Moments] = deque(maxlen=window)
        self._right: deque[Moments] = deque(maxlen=window)
        self._all_right = NO_MOMENTS

    def add(self, remembered: NDArray[np.float64], right: NDArray[np.float64], stored: Moments) -> dict[str, float]:
        """Add a step's features: of the stored rollouts (n, d), and of all right rollouts (m, d); returns the metrics.

        ``stored`` are the moments of all stored rows. A metric is left out if there are too few vectors for it.
        """
        self._remembered.append(Moments.of(remembered))
        self._right.append(Moments.of(right))
        self._all_right = self._all_right.merge(self._right[-1])
        return {**_metrics("", self._remembered, stored), **_metrics("_right", self._right, self._all_right)}

    def save(self, path: Path) -> None:
        """Write the state that a resumed run needs."""
        parts = {"remembered": [*self._remembered], "right": [*self._right], "all_right": [self._all_right]}
        arrays: dict[str, Any] = {
            f"{name}_{field}": np.array([getattr(part, field) for part in moments])
            for name, moments in parts.items()
            for field in _FIELDS
        }
        content = BytesIO()
        np.savez(content, **arrays)
        write_atomically(path, content.getvalue())

    def load(self, path: Path) -> None:
        """Restore the saved state, without unpickling."""
        with np.load(path, allow_pickle=False) as saved:
            parts = {
                name: [Moments(int(count), *rest) for count, *rest in zip(*(saved[f"{name}_{key}"] for key in _FIELDS))]
                for name in ("remembered", "right", "all_right")
            }
        for steps, name in ((self._remembered, "remembered"), (self._right, "right")):
            steps.clear()
            steps.extend(parts[name])
        (self._all_right,) = parts["all_right"]


_FIELDS = ("count", "mean", "scatter")


def _metrics(kind: str, steps: deque[Moments], total: Moments) -> dict[str, float]:
    spans = {"all": total, "window": merge_moments(list(steps)), "step": steps[-1]}
    ratios = {f"meds/eigen_ratio{kind}_{span}": moments.eigen_ratio() for span, moments in spans.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}
