"""``meds.reward: math``: 1 if the last boxed answer of the response equals the label, 0 otherwise.

OpenRLHF loads this file by its path and calls `reward_func` in a thread per response.
"""

from typing import Any

from meds_openrlhf.rewards import grading


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """OpenRLHF's reward function: ``queries`` are prompts with their responses; rewards and scores are (B,) float32."""
    return grading.scored(queries, prompts, labels)
