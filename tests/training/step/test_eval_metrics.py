"""Evaluation during training."""

from typing import Any

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.training.step.log import eval_line, eval_metrics

PROMPTS = [(["aime24"], ["p0"], ["1"], [None]), (["aime24"], ["p1"], ["1"], [None]), (["amc23"], ["p2"], ["1"], [None])]


TOKENIZER = build_char_tokenizer()
LOCATOR = AnswerLocator(TOKENIZER)


def sample(prompt: str, score: float, reward: float) -> Experience:
    """The prompt has a box, and so has the response to the first prompt."""
    prompt_ids, response_ids = (
        TOKENIZER.encode(text, add_special_tokens=False)
        for text in ("in a \\boxed{1} ", "\\boxed{7}" if prompt == "p0" else "seven")
    )
    ids = torch.tensor([prompt_ids + response_ids])
    return Experience(
        sequences=ids,
        attention_mask=torch.ones_like(ids),
        action_mask=torch.tensor([[0] * (len(prompt_ids) - 1) + [1] * len(response_ids)]),
        prompts=[prompt],
        rewards=torch.tensor([reward]),
        scores=torch.tensor([score]),
        response_length=torch.tensor([5]),
        truncated=torch.tensor([False]),
    )


def samples() -> list[Any]:
    """Right: 1 of 4, 3 of 4, 0 of 4. The reward of a wrong one has a part for its format."""
    scores = {"p0": [0, 1, 0, 0], "p1": [1, 1, 0, 1], "p2": [0, 0, 0, 0]}
    return [sample(prompt, float(score), float(score or 0.1)) for prompt, row in scores.items() for score in row]


def test_pass_at_k_is_unbiased_and_of_the_verdicts_alone() -> None:
    metrics = eval_metrics(PROMPTS, samples(), 4, threshold=0.5, locator=LOCATOR)
    assert metrics["eval_aime24_pass1"] == pytest.approx((1 / 4 + 3 / 4) / 2)
    # 1 - C(3, 2) / C(4, 2) = 1 / 2, and every pair of the second problem holds a right one
    assert metrics["eval_aime24_pass2"] == pytest.approx((1 / 2 + 1) / 2)
    assert metrics["eval_aime24_pass4"] == 1
    assert metrics["eval_amc23_pass1"] == metrics["eval_amc23_pass4"] == 0
    assert metrics["eval_num_samples"] == 12
    assert metrics["eval_aime24_unanswered_rate"] == 0.5
    assert metrics["eval_amc23_unanswered_rate"] == 1
    line = "evaluation after step 20: aime24 pass@1 0.500, pass@4 1.000; amc23 pass@1 0.000, pass@4 0.000"
    assert eval_line(20, metrics) == line


def test_one_sample_per_prompt() -> None:
    metrics = eval_metrics(PROMPTS[:1], samples()[1:2], 1, threshold=0.5, locator=LOCATOR)
    assert eval_line(3, metrics) == "evaluation after step 3: aime24 pass@1 1.000"
