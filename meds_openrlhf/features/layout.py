"""Where a sample's token stands in what the model gets: batches are padded, packed, or cut over ranks.

The recorder works on tokens of the model's input, flattened. These functions say which of them is token ``t`` of row
``b`` of a (B, T) batch.
"""

from __future__ import annotations

import torch


def padded_positions(positions: torch.Tensor, width: int) -> torch.Tensor:
    """For a (B, T) batch given as it is: ``positions`` (B,) int64, -1 for none, to flat ones; ``width`` is T."""
    rows = torch.arange(len(positions), device=positions.device)
    return torch.where(positions >= 0, rows * width + positions, -1)


def packed_positions(positions: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """For a batch whose tokens are given without padding, one row after the other; ``attention_mask`` (B, T)."""
    before = attention_mask.cumsum(1) - attention_mask  # (B, T): tokens of the row before each
    first = attention_mask.sum(1).cumsum(0) - attention_mask.sum(1)  # (B,): tokens of earlier rows
    within = before.gather(1, positions.clamp(min=0)[:, None])[:, 0]
    return torch.where(positions >= 0, first + within, -1)


def positions_on_rank(packed: torch.Tensor, total: int, rank: int, ranks: int) -> torch.Tensor:
    """For ``total`` packed tokens padded and cut into ``ranks`` equal pieces: positions in piece ``rank``, else -1.

    This is how ring attention spreads a batch (`openrlhf.models.ring_attn_utils`).
    """
    piece = -(-total // ranks)
    local = packed - rank * piece
    return torch.where((packed >= 0) & (local >= 0) & (local < piece), local, -1)
