"""Flat positions by hand, and a cut over ranks that loses and doubles nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.layout import locate_answers, packed_positions, padded_positions, positions_on_rank

TOKENIZER = build_char_tokenizer()

MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 0, 0]])
POSITIONS = torch.tensor([2, 1, -1])


def test_flat_positions_of_padded_and_packed_rows() -> None:
    assert padded_positions(POSITIONS, 4).tolist() == [2, 5, -1]
    assert padded_positions(torch.tensor([0, 3, 0]), 4).tolist() == [0, 7, 8]
    assert packed_positions(POSITIONS, MASK).tolist() == [2, 3, -1]  # padding on either side
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


@pytest.mark.parametrize(
    ("prompt", "response", "found"),
    [
        ("ask ", "\\boxed{5", "{5"),  # cut off right after the answer's first token
        ("ask ", "\\boxed{", None),
        ("ask \\", "boxed{5}", None),  # the opening begins in the prompt
        ("ask", "\\boxed{5}", "{5"),
    ],
)
def test_generated_tokens_begin_and_end_with_the_response(prompt: str, response: str, found: str | None) -> None:
    ids = TOKENIZER(prompt + response, add_special_tokens=False)["input_ids"]
    sequences = torch.tensor([ids])
    own = torch.tensor([[token >= len(prompt) for token in range(len(ids))]])
    positions, _ = locate_answers(AnswerLocator(TOKENIZER), sequences, own)
    assert positions.tolist() == [-1 if found is None else (prompt + response).index(found)]
