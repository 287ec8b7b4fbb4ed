"""``meds.reward: math-format``: 1 for a right answer, 0.1 for a wrong answer in a readable box, 0 without a box.

For models that do not box their answers yet. OpenRLHF loads this file by its path and calls `reward_func` in a thread
per response.
"""

from typing import Any

import torch

from meds_openrlhf.rewards import grading
from meds_openrlhf.rewards.grading import answer_of

BOXED = 0.1


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """OpenRLHF's reward function: (B,) float32 rewards of 1, 0.1 and 0; the scores are 1 and 0."""
    outcome = grading.scored(queries, prompts, labels)
    answers = map(answer_of, grading.responses(queries, prompts))
    boxed = torch.tensor([BOXED * (answer is not None) for answer in answers])
    return {**outcome, "rewards": torch.maximum(outcome["scores"], boxed)}
