"""The paper's theorem in numbers: the effect of a penalty for repeats on the expected task reward of a Gibbs policy.

The KL-regularised update under reward r turns a policy p into q1 ∝ p exp(eta r); under r - lambda c into
q2 ∝ q1 w with w = exp(-eta lambda c). Then J(q2) - J(q1) = Cov_q1(r, w) / E_q1[w], where J is the expected r. This is
not negative if responses with more recorded repeats score no higher.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def gibbs(policy: Floats, exponent: Floats) -> Floats:
    """``policy * exp(exponent)`` (n,), normalised; ``policy`` (n,) holds probabilities, zeros allowed."""
    with np.errstate(divide="ignore"):
        logits = np.log(policy) + exponent
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def gain(policy: Floats, reward: Floats, penalty: Floats, eta: float) -> float:
    """J(q2) - J(q1) from the two expected rewards; ``policy`` p, ``reward`` r and ``penalty`` lambda c are (n,)."""
    first, second = gibbs(policy, eta * reward), gibbs(policy, eta * (reward - penalty))
    return float(second @ reward - first @ reward)


def gain_by_covariance(updated: Floats, reward: Floats, penalty: Floats, eta: float) -> float:
    """The theorem's right-hand side Cov_q1(r, w) / E_q1[w], with ``updated`` q1 (n,)."""
    weights = np.exp(-eta * (penalty - penalty.min()))  # the shift cancels in the fraction
    centred = reward - updated @ reward
    return float(updated @ (centred * weights) / (updated @ weights))


def repeats_score_no_higher(reward: Floats, repeats: Floats) -> bool:
    """The theorem's assumption: a response with more ``repeats`` (n,) than another has no higher ``reward`` (n,)."""
    _, level = np.unique(repeats, return_inverse=True)
    highest = np.full(level.max() + 1, -np.inf)
    lowest = np.full(level.max() + 1, np.inf)
    np.maximum.at(highest, level, reward)
    np.minimum.at(lowest, level, reward)
    return bool((highest[1:] <= np.minimum.accumulate(lowest)[:-1]).all())


def repeats_score_no_higher_on_average(updated: Floats, reward: Floats, repeats: Floats) -> bool:
    """The assumption for means under ``updated`` q1 (n,), enough for the proof: E[r | repeats] does not increase."""
    possible = updated > 0
    _, level = np.unique(repeats[possible], return_inverse=True)
    means = np.bincount(level, (updated * reward)[possible]) / np.bincount(level, updated[possible])
    return bool((np.diff(means) <= 1e-12 * max(np.abs(reward).max(), 1e-300)).all())
