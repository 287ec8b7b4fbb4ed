"""A feature of your own: --meds.features.function examples/features.py (docs/recipes/own.md)."""

import torch


def from_hidden_states(hidden_states: torch.Tensor) -> torch.Tensor:
    """The direction of the hidden state at the answer in a layer two thirds up, in 64 random projections.

    (P, N, H) float32 to (P, 64): P answers, N layers, hidden size H.
    """
    layer = hidden_states[:, 2 * hidden_states.shape[1] // 3]
    generator = torch.Generator().manual_seed(0)  # the same projections on every rank and after every restart
    projections = torch.randn(layer.shape[1], 64, generator=generator).to(layer.device)
    return layer @ projections
