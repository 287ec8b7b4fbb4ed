"""The penalty of Section 3.3 of the paper: the bigger the cluster that a rollout falls into, the less it is rewarded.

Whose rollouts are clustered at all, and whether noise is a cluster, is the memory's affair: it says so by the sizes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def cluster_penalty(sizes: NDArray[np.integer], *, alpha: float, beta: float) -> NDArray[np.float64]:
    """``min(alpha * ln(size + 1), beta)`` (n,) float64, between 0 and ``beta``.

    ``sizes`` (n,): rows of the rollout's cluster stored before this step; 0 for one in no cluster, which costs nothing.
    """
    penalty: NDArray[np.float64] = np.minimum(alpha * np.log(sizes.astype(np.float64) + 1.0), beta)
    return penalty


def rarity_bonus(sizes: NDArray[np.integer], *, alpha: float, beta: float) -> NDArray[np.float64]:
    """``min(alpha / size, beta)`` (n,) float64: the fewer rollouts of this step are like it, the more.

    ``sizes`` (n,): rollouts of the step in the rollout's cluster, itself among them; 0 for one that is not clustered,
    which gets nothing. For comparison with the penalty: the same features, no history.
    """
    bonus: NDArray[np.float64] = np.minimum(alpha / np.maximum(sizes, 1), beta)
    return np.where(sizes > 0, bonus, 0.0)


def shaped_reward(
    raw: NDArray[np.floating], penalty: NDArray[np.float64], correct: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Rewards (n,) float64 to train on: ``raw - penalty`` of wrong rollouts, ``raw / (1 + penalty)`` of right ones.

    ``raw``, ``penalty`` and ``correct`` (n,). The quotient, which is the reference code's, shrinks the reward of a
    right rollout but never turns its sign; where the penalty is 0 both leave the reward as it is. Raises ValueError
    where the shapes differ.
    """
    if not raw.shape == penalty.shape == correct.shape:
        raise ValueError(f"raw {raw.shape}, penalty {penalty.shape} and correct {correct.shape} differ in shape")
    return np.where(correct, raw / (1.0 + penalty), raw - penalty)
