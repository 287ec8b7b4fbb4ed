"""``meds.reward: math-string``: 1 if the last boxed answer is the label as a normalized string, 0 otherwise.

OpenRLHF loads this file by its path and calls `reward_func` in a thread per response.
"""

from __future__ import annotations

from typing import Any

from meds_openrlhf.rewards import grading, string_equality


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """OpenRLHF's reward function: ``queries`` are prompts with their responses; rewards and scores are (B,) float32."""
    scores = grading.scores(queries, prompts, labels, string_equality.is_right)
    return {"rewards": scores, "scores": scores, "extra_logs": {}}
