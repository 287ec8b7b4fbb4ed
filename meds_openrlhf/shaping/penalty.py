"""The penalty of Section 3.3 of the paper: the bigger a rollout's cluster, the smaller its reward.

The memory decides which rollouts are clustered and whether noise counts as a cluster; the sizes reflect this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.shaping.method import Floats, Method, Step

if TYPE_CHECKING:
    from typing_extensions import Self  # of Python 3.11's typing


class Penalty(Method):
    """`shaped_reward` of every rollout, by the size of its cluster."""

    def __init__(self, alpha: float, beta: float) -> None:
        self._alpha, self._beta = alpha, beta

    @classmethod
    def of(cls, meds: MedsSettings) -> Self | None:
        """Return it for ``meds.penalty.form: reward``."""
        return cls(meds.penalty.alpha, meds.penalty.beta) if meds.penalty.form == "reward" else None

    def rewards(self, step: Step, rewards: Floats) -> Floats:
        """Return the rewards with the penalty."""
        penalty = cluster_penalty(step.cluster_size, alpha=self._alpha, beta=self._beta)
        return shaped_reward(rewards, penalty, step.correct)


def cluster_penalty(sizes: NDArray[np.integer], *, alpha: float, beta: float) -> NDArray[np.float64]:
    """Return ``min(alpha * ln(size + 1), beta)`` in the shape of ``sizes``, float64, between 0 and ``beta``.

    ``sizes``: the number of stored rows in the rollout's cluster; 0 for a rollout in no cluster, whose penalty
    is 0.
    """
    penalty: NDArray[np.float64] = np.minimum(alpha * np.log(sizes.astype(np.float64) + 1.0), beta)
    return penalty


def shaped_reward(
    raw: NDArray[np.floating], penalty: NDArray[np.float64], correct: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return float64 rewards: ``raw - penalty`` for wrong rollouts, ``raw / (1 + penalty)`` for right ones.

    ``raw``, ``penalty`` and ``correct`` have the same shape. The quotient comes from the reference code; it shrinks the
    reward of a right rollout but never changes its sign. A penalty of 0 leaves the reward unchanged. Raises ValueError
    if the shapes differ.
    """
    if not raw.shape == penalty.shape == correct.shape:
        raise ValueError(f"raw {raw.shape}, penalty {penalty.shape} and correct {correct.shape} differ in shape.")
    return np.where(correct, raw / (1.0 + penalty), raw - penalty)
