"""Responses and verdicts of OpenRLHF's samples."""

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.training.step.samples import is_right, responses_of


def test_a_score_of_exactly_the_threshold_is_right() -> None:
    scored = Experience(rewards=torch.zeros(3), scores=torch.tensor([0.49, 0.5, 0.51]))
    assert is_right(scored, 0.5).tolist() == [False, True, True]
    assert is_right(Experience(rewards=torch.tensor([0.5, 0.0])), 0.5).tolist() == [True, False]


def test_a_tools_reply_at_the_end_belongs_to_the_response() -> None:
    """Its mask is one token behind: of six tokens, two generated, then two of a reply, then padding."""
    sample = Experience(
        sequences=torch.tensor([[5, 6, 7, 8, 9, 10, 0]]),
        action_mask=torch.tensor([[0, 1, 1, 0, 0, 0]]),
        attention_mask=torch.tensor([[1, 1, 1, 1, 1, 1, 0]]),
    )
    ((tokens, generated),) = responses_of(sample)
    assert tokens.tolist() == [7, 8, 9, 10]
    assert generated.tolist() == [True, True, False, False]
