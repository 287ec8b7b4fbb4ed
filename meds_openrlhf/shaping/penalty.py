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


def shaped_reward(
    raw: NDArray[np.floating], penalty: NDArray[np.float64], correct: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return rewards (n,) float64: ``raw - penalty`` for wrong rollouts, ``raw / (1 + penalty)`` for right ones.

    ``raw``, ``penalty`` and ``correct`` are (n,). The quotient comes from the reference code; it shrinks the reward of
    a right rollout but never changes its sign. A penalty of 0 leaves the reward unchanged. Raises ValueError if the
    shapes differ.
    """
    if not raw.shape == penalty.shape == correct.shape:
        raise ValueError(f"raw {raw.shape}, penalty {penalty.shape} and correct {correct.shape} differ in shape.")
    return np.where(correct, raw / (1.0 + penalty), raw - penalty)


def penalty_effect(raw: NDArray[np.floating], shaped: NDArray[np.floating]) -> float:
    """Return the share of the variance of shaped rewards within groups that the penalties cause, from 0 to 1.

    ``raw`` and ``shaped`` (g, N): the rewards of N responses to each of g prompts. Advantages are relative to the
    group: if all of its wrong responses have the same penalty, normalization undoes it, and the policy learns the same
    as without. The share of a group is therefore what a linear fit of ``shaped`` to ``raw`` leaves of the variance of
    ``shaped``, and 1 if its raw rewards are equal. The result is the mean over groups. Groups whose shaped rewards are
    equal give no advantages and do not count; it is 0 if there are no others.
    """
    x, y = (reward - reward.mean(axis=1, keepdims=True) for reward in (raw.astype(np.float64), shaped))
    teaches = np.ptp(shaped, axis=1) > 0
    if not teaches.any():
        return 0.0
    x, y = x[teaches], y[teaches]
    spread = (x * x).sum(axis=1)
    slope = np.divide((x * y).sum(axis=1), spread, out=np.zeros_like(spread), where=np.ptp(raw[teaches], axis=1) > 0)
    left = y - slope[:, None] * x
    return float(((left * left).sum(axis=1) / (y * y).sum(axis=1)).mean())
