"""A weight of right responses: the policy learns more from its errors than from what it solves.

Zhu et al., "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning" (2025): W-REINFORCE weighs right
responses with lambda, 0.1 in the paper. Here it weights the positive advantages of right responses; see
docs/recipes/rivals.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.shaping.method import Advantages, Change, Method, Step

if TYPE_CHECKING:
    from typing_extensions import Self  # of Python 3.11's typing

LAMBDA = 0.1


class RightWeight(Method):
    """The weight on the positive advantages of right responses."""

    asks_memory = False

    def __init__(self, weight: float = LAMBDA) -> None:
        self._weight = weight

    @classmethod
    def of(cls, meds: MedsSettings) -> Self | None:
        """Return it if ``meds.exploration.right_weight`` is not 1."""
        return None if meds.exploration.right_weight == 1 else cls(meds.exploration.right_weight)

    def advantages(self, step: Step, rewards: NDArray[np.floating], so_far: Advantages) -> Change:
        """Weigh right responses."""
        gains = step.correct & (so_far.outcomes() > 0)
        return Change(factor=np.where(gains, self._weight, 1.0))
