"""Transforms the logits of all layers into the vectors to cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class FeatureTransform:
    """Select layers, optionally take differences, optionally scale to unit length (Sections 3.1 and 5.3 of the paper).

    ``layers``: "last-half" (the paper's formula), "all", the number of last layers, or the last layers as a share of
    all (a float between 0 and 1). ``difference`` between adjacent layers: "none", "before" the selection of layers (the
    ablation's ``14-diff``), or "after" it (one value fewer). ``normalize``: "l2" or "none".
    """

    layers: str | int | float = "last-half"
    difference: str = "none"
    normalize: str = "l2"

    def select(self, layer_logits: NDArray[np.floating]) -> FloatArray:
        """Map (n, N) logits of all layers to (n, d) float64 of the selected layers, not scaled.

        Raises ValueError if the logits are not a finite matrix, ConfigError if there are too few layers.
        """
        if layer_logits.ndim != 2:
            raise ValueError(f"layer_logits: must have the shape (rows, layers), not {layer_logits.shape}.")
        if not np.isfinite(layer_logits).all():
            raise ValueError("layer_logits: must be finite. Leave out rows without a feature.")
        count = self._count(layer_logits.shape[1])
        if self.difference == "before":
            differences = np.diff(layer_logits.astype(np.float64), axis=1)
            return differences[:, max(differences.shape[1] - count, 0) :]
        values = layer_logits[:, layer_logits.shape[1] - count :].astype(np.float64)
        return np.diff(values, axis=1) if self.difference == "after" else values

    def scale(self, selected: FloatArray) -> FloatArray:
        """Map (n, d) selected logits to the (n, d) vectors to cluster; a zero vector stays zero."""
        if self.normalize == "none":
            return selected
        norms = np.linalg.norm(selected, axis=1, keepdims=True)
        unit: FloatArray = selected / np.where(norms > 0, norms, 1.0)
        return unit

    def __call__(self, layer_logits: NDArray[np.floating]) -> FloatArray:
        """Map (n, N) logits of all layers to (n, d) float64 feature vectors."""
        return self.scale(self.select(layer_logits))

    def matrix(self, layers: int) -> FloatArray:
        """Return the (d, N) matrix of the linear map `select`, for the logits of N = ``layers`` layers."""
        transposed: FloatArray = self.select(np.eye(layers)).T
        return transposed

    def dimensions(self, layers: int) -> int:
        """Return the number d of values that `select` returns per row of ``layers`` logits."""
        return int(self.select(np.zeros((1, layers))).shape[1])

    def compared(self, layers: int) -> NDArray[np.bool_]:
        """Return which of N = ``layers`` layers (N,) a vector depends on."""
        last = self.dimensions(layers) + (self.difference != "none")
        chosen: NDArray[np.bool_] = np.arange(layers) >= layers - last
        return chosen

    def _count(self, available: int) -> int:
        if self.layers == "all":
            return available
        share = 0.5 if self.layers == "last-half" else self.layers
        count = int(available * share) if isinstance(share, float) else int(share)
        least = 2 if self.difference == "after" else 1
        if not least <= count <= available:
            hint = f"selects {count} of {available} layers. It must select {least} to {available}."
            raise ConfigError("meds.features.layers", self.layers, hint)
        return count
