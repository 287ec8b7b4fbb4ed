"""Finds the answers of a batch, and maps their positions to the model's input: padded, packed, or split over ranks.

The recorder works on the flattened tokens of the model's input. These functions return the index there of token ``t``
of row ``b`` of a (B, T) batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meds_openrlhf.features.answer import AnswerLocator, LocatedAnswer


def locate_answers(
    locator: AnswerLocator, token_ids: torch.Tensor, generated: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the answers of a batch: per row the position before the answer's first token, and that token's id.

    ``token_ids`` (B, T) int64; ``generated`` (B, T) bool marks the policy's own tokens, which alone are searched.
    Returns (B,) int64 positions, -1 for none, and (B,) int64 ids, on the host.
    """
    return positions_and_targets(find_answers(locator, token_ids, generated), token_ids)


def find_answers(locator: AnswerLocator, token_ids: torch.Tensor, generated: torch.Tensor) -> list[LocatedAnswer]:
    """Find the answers (B) of a batch; arguments as in `locate_answers`."""
    return [locator.find(ids, marked) for ids, marked in zip(token_ids.tolist(), generated.tolist())]


def positions_and_targets(
    answers: Sequence[LocatedAnswer], token_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `locate_answers` does for ``answers`` (B) found in ``token_ids`` (B, T)."""
    positions = torch.tensor([-1 if answer.before is None else answer.before for answer in answers], dtype=torch.int64)
    targets = token_ids.cpu().gather(1, positions[:, None] + 1)[:, 0]  # of -1 token 0, which nobody reads
    return positions, torch.where(positions >= 0, targets, 0)


def padded_positions(positions: torch.Tensor, width: int) -> torch.Tensor:
    """Flatten ``positions`` (B,) int64, -1 for none, of a padded (B, T) batch; ``width`` is T."""
    rows = torch.arange(len(positions), device=positions.device)
    return torch.where(positions >= 0, rows * width + positions, -1)


def packed_positions(positions: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Map positions to a batch packed without padding, row after row; ``attention_mask`` is (B, T)."""
    before = attention_mask.cumsum(1) - attention_mask  # (B, T): earlier tokens of the same row
    first = attention_mask.sum(1).cumsum(0) - attention_mask.sum(1)  # (B,): tokens of earlier rows
    within = before.gather(1, positions.clamp(min=0)[:, None])[:, 0]
    return torch.where(positions >= 0, first + within, -1)


def positions_on_rank(packed: torch.Tensor, total: int, rank: int, ranks: int) -> torch.Tensor:
    """Map packed positions to the piece of ``rank``, -1 if outside, if ``total`` tokens form ``ranks`` equal pieces.

    The tokens are padded to a multiple of ``ranks``. Ring attention splits a batch like this
    (`openrlhf.models.ring_attn_utils`).
    """
    piece = -(-total // ranks)
    local = packed - rank * piece
    return torch.where((packed >= 0) & (local >= 0) & (local < piece), local, -1)
