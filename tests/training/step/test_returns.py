"""Returns are OpenRLHF's to the last bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.step.makers import our_maker, plain_maker
from tests.training.step.rollouts import arguments

OURS, OPENRLHFS = our_maker(arguments()), plain_maker(arguments())


@given(
    seed=st.integers(0, 999), rows=st.integers(1, 4), length=st.integers(1, 40),
    gamma=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.0]), dense=st.booleans(), masked=st.booleans(),
    mask_type=st.sampled_from([torch.long, torch.bool]),
)  # fmt: skip
def test_returns_are_openrlhfs(
    seed: int, rows: int, length: int, gamma: float, dense: bool, masked: bool, mask_type: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(rows, length, generator=generator)
    mask = torch.randint(0, 2, (rows, length), generator=generator)
    if not dense:
        rewards[:, :-1] = 0.0
    mask = mask.to(mask_type) if masked else None
    found = OURS.get_cumulative_returns(rewards, mask, gamma)
    assert found.dtype == torch.float32
    assert torch.equal(found, OPENRLHFS.get_cumulative_returns(rewards, mask, gamma))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_other_types_are_left_to_openrlhf(kind: torch.dtype) -> None:
    rewards, mask = torch.randn(2, 9).to(kind), torch.ones(2, 9)
    expected = OPENRLHFS.get_cumulative_returns(rewards, mask, 0.9)
    assert torch.equal(OURS.get_cumulative_returns(rewards, mask, 0.9), expected)
