"""Pass@k training: a group's advantages are those of a subset of k responses that scores its best reward.

Chen et al., "Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning Models" (2025);
see docs/recipes/rivals.md.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.shaping.method import Advantages, Change, Method, Step

if TYPE_CHECKING:
    from typing_extensions import Self  # of Python 3.11's typing


class PassAtK(Method):
    """Advantages of pass@k training in place of the estimator's."""

    replaces_estimator = True

    def __init__(self, k: int) -> None:
        self._k = k

    @classmethod
    def of(cls, meds: MedsSettings) -> Self | None:
        """Return it if ``meds.exploration.pass_at_k`` is set."""
        return None if meds.exploration.pass_at_k is None else cls(meds.exploration.pass_at_k)

    def advantages(self, step: Step, rewards: NDArray[np.floating], so_far: Advantages) -> Change:
        """Add `pass_at_k_advantages` to terms such as a KL penalty, which are all that the estimator has given."""
        return Change(added=pass_at_k_advantages(rewards, self._k))


def pass_at_k_advantages(rewards: NDArray[np.floating], k: int) -> NDArray[np.float64]:
    """Return the advantages (g, N) float64 of g groups of N, if a subset of k responses scores its best reward.

    Over all subsets S of k responses of a group, with R(S) the largest reward in S::

        advantage_i = (mean of R(S) over the S that contain i - mean of R(S)) / deviation of R(S)

    For rewards of 0 and 1 these are the paper's closed forms, Equations 14 and 15; 1e-6 is added to the deviation as in
    its code. Sorting the rewards extends them to any rewards, such as rewards minus a penalty. A group's
    advantages have mean 0, and are exactly 0 if every subset has the same best reward. ``rewards``: (g, N). Raises
    ValueError if k is not between 1 and N.
    """
    size = rewards.shape[1]
    if not 1 <= k <= size:
        raise ValueError(f"k={k}: must be from 1 to {size}, the responses of a group.")
    order = np.argsort(rewards, axis=1, kind="stable")
    ascending = np.take_along_axis(rewards.astype(np.float64), order, axis=1)
    below_best = ascending - ascending[:, -1:]  # (g, N), 0 for the best reward: subsets that have it add exactly 0
    is_best, is_best_given = _shares_of_subsets(size, k)
    mean = below_best @ is_best
    deviation = np.sqrt(np.maximum(below_best**2 @ is_best - mean**2, 0.0))
    of_sorted = (below_best @ is_best_given.T - mean[:, None]) / (deviation[:, None] + 1e-6)
    advantages: NDArray[np.float64] = np.empty_like(of_sorted)
    np.put_along_axis(advantages, order, of_sorted, axis=1)
    return advantages


def _shares_of_subsets(size: int, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of the subsets of k of ``size`` sorted rewards in which reward j is the best.

    The first array, (N,), is over all subsets; row i of the second, (N, N), over the subsets that contain reward i.
    """
    subsets, subsets_with_one = comb(size, k), comb(size - 1, k - 1)  # Python integers, because they may be huge
    is_best = np.array([comb(j, k - 1) / subsets for j in range(size)])
    given = np.diag([comb(i, k - 1) / subsets_with_one for i in range(size)])
    if k > 1:
        for j in range(1, size):
            given[:j, j] = comb(j - 1, k - 2) / subsets_with_one
    return is_best, given
