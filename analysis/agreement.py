"""Agreement of two labellings of the same rollouts: clusters with known mistakes, or with a judge's categories.

The measure is that of the paper's ablation (Section 5.3): the share of pairs of rollouts that both labellings put into
the same cluster, or both into different clusters; over all pairs, the Rand index.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import (  # type: ignore[import-untyped]
    adjusted_rand_score,
    homogeneity_completeness_v_measure,
    rand_score,
)

from meds_openrlhf.memory.clustering import NOISE

Labels = NDArray[np.integer]


@dataclass(frozen=True)
class Agreement:
    """Agreement of labels with a truth: ``pairwise`` is over ``pairs`` of ``rows``, the others are over all rows.

    ``adjusted_rand`` is 0 for random labels and 1 for the truth itself; ``homogeneity`` is 1 if each cluster holds a
    single kind of the truth, ``completeness`` if each kind of the truth lies in a single cluster.
    """

    rows: int
    pairs: int
    pairwise: float
    adjusted_rand: float
    homogeneity: float
    completeness: float


def agreement(labels: Labels, truth: Labels) -> Agreement:
    """Compute the agreement of ``labels`` (n,) with ``truth`` (n,), n > 1.

    Equal labels are the same cluster, including -1: noise is a set, as in the paper. Apply `separate_noise` first to
    treat each row of noise as a separate cluster.
    """
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(truth, labels)
    return Agreement(
        rows=len(labels),
        pairs=math.comb(len(labels), 2),
        pairwise=float(rand_score(truth, labels)),
        adjusted_rand=float(adjusted_rand_score(truth, labels)),
        homogeneity=float(homogeneity),
        completeness=float(completeness),
    )


def agreement_of_pairs(labels: Labels, truth: Labels, pairs: NDArray[np.int64]) -> float:
    """The share of ``pairs`` (p, 2) of rows, p > 0, that both labellings (n,) call the same, or both different."""
    first, second = pairs.T
    return float(((labels[first] == labels[second]) == (truth[first] == truth[second])).mean())


def separate_noise(labels: Labels) -> NDArray[np.int64]:
    """The same clusters, with each row of noise as an additional cluster, numbered after them."""
    separate = np.array(labels, dtype=np.int64)
    alone = separate == NOISE
    separate[alone] = separate.max(initial=NOISE) + 1 + np.arange(alone.sum())
    return separate
