"""Focal weights: the more often a prompt was solved before, the less its group moves the policy.

Plyusov et al., "F-GRPO: Don't Let Your Policy Learn the Obvious and Forget the Rare" (2026), who take the success of
the group itself; here it is remembered from the prompt's earlier visits. See docs/recipes/focal.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.shaping.method import Advantages, Change, Floats, Method, Step

if TYPE_CHECKING:
    from typing_extensions import Self  # of Python 3.11's typing

GAMMA = 1.0  # the weight is then the share of failures


class Focal(Method):
    """`focal_weights` on all advantages of a group."""

    asks_memory = False

    def __init__(self, gamma: float = GAMMA) -> None:
        self._gamma = gamma

    @classmethod
    def of(cls, meds: MedsSettings) -> Self | None:
        """Return it if ``meds.exploration.focal_gamma`` is not 0."""
        return cls(meds.exploration.focal_gamma) if meds.exploration.focal_gamma else None

    def advantages(self, step: Step, rewards: NDArray[np.floating], so_far: Advantages) -> Change:
        """Weigh the group's advantages."""
        return Change(factor=focal_weights(step.success, self._gamma))


def focal_weights(success: NDArray[np.floating], gamma: float) -> Floats:
    """Return ``(1 - success) ** gamma`` in the shape of ``success``, float64, from 0 to 1.

    ``success``: the remembered share of right responses to the prompt, 0 before its first visit, whose weight is 1.
    With ``gamma`` 0 all weights are exactly 1.
    """
    weights: Floats = (1.0 - success.astype(np.float64)) ** gamma
    return weights
