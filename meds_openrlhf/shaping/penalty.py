"""The penalty of Section 3.3 of the paper: the bigger the cluster of past errors, the more reward is taken away."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NOISE = -1


def cluster_penalty(
    sizes: NDArray[np.integer],
    labels: NDArray[np.integer],
    correct: NDArray[np.bool_],
    *,
    alpha: float,
    beta: float,
) -> NDArray[np.float64]:
    """``min(alpha * ln(size + 1), beta)`` for wrong rollouts in a cluster, 0 for all others.

    ``sizes`` (n,) rows of the rollout's cluster stored before this step, 0 on a prompt's first visit; ``labels`` (n,)
    its cluster, -1 for noise; ``correct`` (n,). Returns (n,) float64, never negative, to be subtracted.
    """
    if not sizes.shape == labels.shape == correct.shape:
        raise ValueError(f"sizes {sizes.shape}, labels {labels.shape} and correct {correct.shape} differ in shape")
    penalty = np.minimum(alpha * np.log(sizes.astype(np.float64) + 1.0), beta)
    return np.where(correct | (labels == NOISE), 0.0, penalty)
