"""``meds.reward: math-signed``: 1 for a right answer, -1 otherwise, as in DAPO's paper (Section 2.4).

OpenRLHF loads this file by its path and calls `reward_func` in a thread per response.
"""

from typing import Any

from meds_openrlhf.rewards import grading


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """OpenRLHF's reward function: (B,) float32 rewards of 1 and -1; the scores are 1 and 0."""
    outcome = grading.scored(queries, prompts, labels)
    return {**outcome, "rewards": 2 * outcome["scores"] - 1}
