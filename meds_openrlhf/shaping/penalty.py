"""The penalty of Section 3.3 of the paper: the bigger a rollout's cluster, the smaller its reward.

The memory decides which rollouts are clustered and whether noise counts as a cluster; the sizes reflect this.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def cluster_penalty(sizes: NDArray[np.integer], *, alpha: float, beta: float) -> NDArray[np.float64]:
    """Return ``min(alpha * ln(size + 1), beta)`` (n,) float64, between 0 and ``beta``.

    ``sizes`` (n,): the number of stored rows in the rollout's cluster; 0 for a rollout in no cluster, whose penalty
    is 0.
    """
    penalty: NDArray[np.float64] = np.minimum(alpha * np.log(sizes.astype(np.float64) + 1.0), beta)
    return penalty


def rarity_bonus(sizes: NDArray[np.integer], *, alpha: float, beta: float) -> NDArray[np.float64]:
    """Return ``min(alpha / size, beta)`` (n,) float64, larger if fewer rollouts of the step are similar.

    ``sizes`` (n,): the number of the step's rollouts in the rollout's cluster, including itself; 0 for a rollout that
    is not clustered, whose bonus is 0. It serves to compare with the penalty: the same features without history.
    """
    bonus: NDArray[np.float64] = np.minimum(alpha / np.maximum(sizes, 1), beta)
    return np.where(sizes > 0, bonus, 0.0)


def shaped_reward(
    raw: NDArray[np.floating], penalty: NDArray[np.float64], correct: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return rewards (n,) float64: ``raw - penalty`` for wrong rollouts, ``raw / (1 + penalty)`` for right ones.

    ``raw``, ``penalty`` and ``correct`` are (n,). The quotient comes from the reference code; it shrinks the reward of
    a right rollout but never changes its sign. A penalty of 0 leaves the reward unchanged. Raises ValueError if the
    shapes differ.
    """
    if not raw.shape == penalty.shape == correct.shape:
        raise ValueError(f"raw {raw.shape}, penalty {penalty.shape} and correct {correct.shape} differ in shape")
    return np.where(correct, raw / (1.0 + penalty), raw - penalty)
