"""Which tokens the policy generated, and which samples are right."""

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.training.step.samples import answers_of, generated_tokens, is_right


def test_the_mask_of_actions_is_one_token_behind() -> None:
    actions = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]])
    attention = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])  # the second row ends earlier
    assert generated_tokens(actions, attention).tolist() == [
        [False, False, True, True, False],
        [False, False, True, True, False],
    ]


@pytest.mark.parametrize(
    ("prompt", "response", "answer"),
    [("so ", "\\boxed{7}", "7"), ("so \\", "boxed{7}", None), ("\\boxed{1} ", "no", None)],
)
def test_an_answer_stands_in_the_response_alone(prompt: str, response: str, answer: str | None) -> None:
    tokenizer = build_char_tokenizer()
    ids = tokenizer.encode(prompt + response, add_special_tokens=False)
    actions = torch.tensor([[0] * (len(prompt) - 1) + [1] * len(response)])
    generated = generated_tokens(actions, torch.ones(1, len(ids)))
    assert answers_of(AnswerLocator(tokenizer), torch.tensor([ids]), generated) == [answer]


def test_the_score_decides_and_a_reward_where_there_is_none() -> None:
    rewards = torch.tensor([0.1, 0.5, 1.0])
    assert is_right(Experience(rewards=rewards), 0.5).tolist() == [False, True, True]
    assert is_right(Experience(rewards=rewards, scores=torch.tensor([1, 0, 1])), 0.5).tolist() == [True, False, True]
