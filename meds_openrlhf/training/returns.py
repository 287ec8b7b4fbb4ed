"""Returns of tokens, in OpenRLHF's order of floating-point operations: the results are equal to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from meds_openrlhf.memory.clustering import compiled


@compiled
def cumulative_returns(rewards: Any, gamma: Any) -> Any:
    """Return ``rewards[t] + gamma * returns[t + 1]`` for rewards (B, A) and ``gamma``, both float32."""
    returns = np.empty_like(rewards)
    for row in range(rewards.shape[0]):
        later = np.float32(0)
        for token in range(rewards.shape[1] - 1, -1, -1):
            later = rewards[row, token] + gamma * later
            returns[row, token] = later
    return returns
