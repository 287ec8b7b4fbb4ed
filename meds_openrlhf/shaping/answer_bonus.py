"""An exploration bonus of seldom answers: what was answered often loses advantage, what was answered seldom gains.

Song et al., "Outcome-based Exploration for LLM Reasoning" (2025), UCB with a constant baseline (UCB-Con); see
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


class AnswerBonus(Method):
    """`answer_bonus` for each response that the memory of answers has counted, be it right or wrong."""

    may_reward_errors = True

    def __init__(self, weight: float, baseline: float) -> None:
        self._weight, self._baseline = weight, baseline

    @classmethod
    def of(cls, meds: MedsSettings) -> Self | None:
        """Return it if ``meds.exploration.answer_bonus`` is set."""
        settings = meds.exploration
        return cls(settings.answer_bonus, settings.answer_baseline) if settings.answer_bonus else None

    def advantages(self, step: Step, rewards: NDArray[np.floating], so_far: Advantages) -> Change:
        """Add the bonus."""
        bonus = answer_bonus(step.cluster_size, weight=self._weight, baseline=self._baseline)
        return Change(added=np.where(step.has_row, bonus, 0.0))


def answer_bonus(counts: NDArray[np.integer], *, weight: float, baseline: float) -> NDArray[np.float64]:
    """Return ``weight * (min(1, sqrt(1 / count)) - baseline)`` in the shape of ``counts``, to be added to advantages.

    ``counts``: how often the response's final answer was given to its prompt before.
    """
    bonus: NDArray[np.float64] = 1.0 / np.sqrt(np.maximum(counts, 1))
    return weight * (bonus - baseline)
