"""A reward for the doctor's training, by which responses differ however random the policy is."""

from typing import Any

import torch


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """Return 1 for responses whose characters' codes have an even sum, and 0 for the others."""
    rewards = torch.tensor([float(sum(map(ord, query)) % 2 == 0) for query in queries])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
