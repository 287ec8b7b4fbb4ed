"""Flat positions by hand, and a cut over ranks that loses and doubles nothing."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.features.layout import packed_positions, padded_positions, positions_on_rank

MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 0, 0]])
POSITIONS = torch.tensor([2, 1, -1])


def test_padded() -> None:
    assert padded_positions(POSITIONS, 4).tolist() == [2, 5, -1]
    assert padded_positions(torch.tensor([0, 3, 0]), 4).tolist() == [0, 7, 8]


def test_packed_with_padding_on_either_side() -> None:
    assert packed_positions(POSITIONS, MASK).tolist() == [2, 3, -1]
    assert packed_positions(torch.tensor([0, 3, 1]), MASK).tolist() == [0, 5, 7]


@given(st.integers(1, 50), st.integers(1, 8))
def test_every_token_is_on_one_rank_where_ring_attention_puts_it(total: int, ranks: int) -> None:
    everywhere = torch.arange(total)
    pieces = torch.stack([positions_on_rank(everywhere, total, rank, ranks) for rank in range(ranks)])
    assert (pieces >= 0).sum(0).tolist() == [1] * total
    assert set(pieces[pieces < 0].tolist()) <= {-1}
    padded = torch.nn.functional.pad(everywhere, (0, -total % ranks), value=-1)
    for rank, piece in enumerate(padded.chunk(ranks)):  # as OpenRLHF cuts it
        own = pieces[rank] >= 0
        assert everywhere[own].tolist() == piece[pieces[rank][own]].tolist()
