"""The paper's theorem in numbers: what a penalty for repeats does to the expected task reward of a Gibbs policy.

The KL-regularised update under reward r turns a policy p into q1 ∝ p exp(eta r); under r - lambda c into
q2 ∝ q1 w with w = exp(-eta lambda c). Then J(q2) - J(q1) = Cov_q1(r, w) / E_q1[w], J the expected r. It is not negative
where responses with more recorded repeats score no higher.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def gibbs(policy: Floats, exponent: Floats) -> Floats:
    """``policy * exp(exponent)`` (n,), normalised; ``policy`` (n,) holds probabilities, zeros allowed.

    Raises ValueError for probabilities that are negative or do not add up to 1.
    """
    if (policy < 0).any() or abs(policy.sum() - 1) > 1e-9:
        raise ValueError(f"policy: sums to {policy.sum()}, must be probabilities")
    with np.errstate(divide="ignore"):
        logits = np.log(policy) + exponent
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def gain(policy: Floats, reward: Floats, penalty: Floats, eta: float) -> float:
    """J(q2) - J(q1) by both expected rewards; ``policy`` p, ``reward`` r and ``penalty`` lambda c are (n,)."""
    first, second = gibbs(policy, eta * reward), gibbs(policy, eta * (reward - penalty))
    return float(second @ reward - first @ reward)


def gain_by_covariance(updated: Floats, reward: Floats, penalty: Floats, eta: float) -> float:
    """Cov_q1(r, w) / E_q1[w] with ``updated`` q1 (n,): the theorem's right-hand side."""
    weights = np.exp(-eta * (penalty - penalty.min()))  # a factor that both sides of the fraction share
    centred = reward - updated @ reward
    return float(updated @ (centred * weights) / (updated @ weights))


def repeats_score_no_higher(reward: Floats, repeats: Floats) -> bool:
    """The theorem's assumption: of two responses the one with more ``repeats`` (n,) has no higher ``reward`` (n,)."""
    _, level = np.unique(repeats, return_inverse=True)
    highest = np.full(level.max() + 1, -np.inf)
    lowest = np.full(level.max() + 1, np.inf)
    np.maximum.at(highest, level, reward)
    np.minimum.at(lowest, level, reward)
    return bool((highest[1:] <= np.minimum.accumulate(lowest)[:-1]).all())


def repeats_score_no_higher_on_average(updated: Floats, reward: Floats, repeats: Floats) -> bool:
    """The same of means under ``updated`` q1 (n,): E[r | repeats] never rises with repeats. The proof needs no more."""
    possible = updated > 0
    _, level = np.unique(repeats[possible], return_inverse=True)
    means = np.bincount(level, (updated * reward)[possible]) / np.bincount(level, updated[possible])
    return bool((np.diff(means) <= 1e-12 * max(np.abs(reward).max(), 1e-300)).all())
