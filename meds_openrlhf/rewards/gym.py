"""``meds.reward: gym``: 1 if reasoning-gym's scorer calls the response's answer right, 0 otherwise.

For files of ``meds data prepare gym:TASK``, whose labels contain what the scorer needs and the lowest score that counts
as right. OpenRLHF loads this file by its path and calls `reward_func` in a thread per response.
"""

from typing import Any

from meds_openrlhf.rewards import grading


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """OpenRLHF's reward function: ``queries`` are prompts with their responses; rewards and scores are (B,) float32."""
    return grading.scored(queries, prompts, labels, grading.solves)
