"""Weights that survive normalization: wrong rollouts share their group's pressure by how often each error was made.

Normalization divides by the deviation of a group, so a penalty subtracted from rewards nearly vanishes
(docs/recipes/weights.md). Here the memory acts on the advantages. Arrays are of g groups of N responses each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.shaping.method import Advantages, Bools, Change, Floats, Method, Step

if TYPE_CHECKING:
    from typing_extensions import Self  # of Python 3.11's typing

LOWEST, HIGHEST = 0.25, 4.0  # limits of a weight, before the mean is made 1 again
KAPPA = 0.25  # minus the mean advantage of a group without a right response


class Weights(Method):
    """`cluster_weights` on the negative advantages of wrong responses, and of extras."""

    @classmethod
    def of(cls, meds: MedsSettings) -> Self | None:
        """Return it for ``meds.penalty.form: weights``."""
        return cls() if meds.penalty.form == "weights" else None

    def advantages(self, step: Step, rewards: NDArray[np.floating], so_far: Advantages) -> Change:
        """Weigh the group's advantages, and give extras minus `KAPPA` times their weights."""
        weights = cluster_weights(step.cluster_size, ~step.correct, step.has_row)
        factor = pressure(so_far.outcomes(), weights, ~step.correct)
        return Change(factor, np.where(step.is_extra, -KAPPA * weights, 0.0))


class Extras(Method):
    """Groups without a right response have the advantage minus `KAPPA`; the others keep theirs."""

    @classmethod
    def of(cls, meds: MedsSettings) -> Self | None:
        """Return it if ``meds.penalty.extras`` is set, and `Weights` do not weight extras."""
        return cls() if meds.penalty.extras and meds.penalty.form != "weights" else None

    def advantages(self, step: Step, rewards: NDArray[np.floating], so_far: Advantages) -> Change:
        """Give extras their advantage."""
        return Change(added=np.where(step.is_extra, -KAPPA, 0.0))


def cluster_weights(sizes: NDArray[np.integer], wrong: Bools, has_row: Bools) -> Floats:
    """Return the weights v (g, N) float64: in proportion to n + 1, of mean 1 over the wrong responses of a group.

    ``sizes`` (g, N): n, the stored rows in a response's cluster. A wrong response without a row (``has_row`` is false),
    for example without an answer, counts like the largest cluster of its group. Weights are limited to `LOWEST` and
    `HIGHEST`, and then scaled to mean 1. They are exactly 1 for right responses, and in groups whose wrong responses
    all have the same n, such as a prompt's first visit.
    """
    largest = np.where(wrong & has_row, sizes, 0).max(axis=1, keepdims=True)
    counts = np.where(wrong, np.where(has_row, sizes, largest) + 1.0, 0.0)
    number = np.maximum(wrong.sum(axis=1, keepdims=True), 1)
    mean = counts.sum(axis=1, keepdims=True) / number
    limited = np.where(wrong, np.clip(counts / np.where(mean > 0, mean, 1.0), LOWEST, HIGHEST), 0.0)
    total = limited.sum(axis=1, keepdims=True)
    return np.where(wrong, limited * (number / np.where(total > 0, total, 1.0)), 1.0)


def pressure(advantages: NDArray[np.floating], weights: Floats, wrong: Bools) -> Floats:
    """Return the factors (g, N) float64 of the advantages (g, N): weights of the negative ones of wrong responses.

    They are scaled so that the sum of a group's advantages stays what it was; it stays exactly 1 times each advantage
    if all weights are equal. All factors are positive, so no advantage changes its sign; right responses, and wrong
    ones with a positive advantage, have the factor 1.
    """
    pressed = wrong & (advantages < 0)
    before = np.where(pressed, advantages, 0.0).astype(np.float64)
    after = (before * weights).sum(axis=1, keepdims=True)
    scale = before.sum(axis=1, keepdims=True) / np.where(after < 0, after, 1.0)
    return np.where(pressed, weights * scale, 1.0)
