"""How far two labellings of the same rollouts agree: clusters with known mistakes, or with a judge's error categories.

The measure of the paper's ablation (Section 5.3): of pairs of rollouts, the share on which both labellings say "the
same cluster" or both say "different ones".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, homogeneity_completeness_v_measure  # type: ignore[import-untyped]

from meds_openrlhf.memory.clustering import NOISE

Labels = NDArray[np.integer]
NOISE_READINGS = ("set", "alone")


@dataclass(frozen=True)
class Agreement:
    """Of labels with a truth: ``pairwise`` over ``pairs`` of the ``rows``; the others over all rows.

    ``adjusted_rand`` is 0 for labels at random and 1 for the truth itself; ``homogeneity`` is 1 where each cluster
    holds one kind of the truth, ``completeness`` where each kind of the truth lies in one cluster.
    """

    rows: int
    pairs: int
    pairwise: float
    adjusted_rand: float
    homogeneity: float
    completeness: float


def agreement(labels: Labels, truth: Labels, *, noise: str = "set") -> Agreement:
    """How far ``labels`` (n,), -1 for noise, agree with ``truth`` (n,), which has no noise.

    ``noise``: "set", all noise is one cluster, as in the paper, or "alone", each row of noise is a cluster of its own.
    Raises ValueError as `pairwise_agreement` does.
    """
    if noise not in NOISE_READINGS:
        raise ValueError(f"noise: {noise!r}, must be one of {', '.join(NOISE_READINGS)}")
    if noise == "alone":
        labels = separate_noise(labels)
    pairwise = pairwise_agreement(labels, truth)
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(truth, labels)
    return Agreement(
        rows=len(labels),
        pairs=math.comb(len(labels), 2),
        pairwise=pairwise,
        adjusted_rand=float(adjusted_rand_score(truth, labels)),
        homogeneity=float(homogeneity),
        completeness=float(completeness),
    )


def pairwise_agreement(one: Labels, other: Labels, pairs: NDArray[np.int64] | None = None) -> float:
    """Share of pairs of rows on which both labellings (n,) say "same" or both say "different".

    ``pairs`` (p, 2) are indices of rows; None: all n (n - 1) / 2 pairs, counted by the contingency table. Equal labels
    are the same cluster, -1 like any other: noise is a set of its own. `separate_noise` first makes each row of noise
    stand alone. Raises ValueError for labellings of different length, or where there is no pair.
    """
    if one.shape != other.shape or one.ndim != 1:
        raise ValueError(f"labels: shapes {one.shape} and {other.shape}, must be the same (n,)")
    if pairs is None:
        return _agreement_of_all_pairs(one, other)
    if len(pairs) == 0:
        raise ValueError("pairs: there is none to ask about")
    first, second = pairs.T
    same = (one[first] == one[second]) == (other[first] == other[second])
    return float(same.mean())


def separate_noise(labels: Labels) -> NDArray[np.int64]:
    """The same clusters, and each row of noise one of its own, numbered after them."""
    separate = np.array(labels, dtype=np.int64)
    alone = separate == NOISE
    separate[alone] = separate.max(initial=NOISE) + 1 + np.arange(alone.sum())
    return separate


def _agreement_of_all_pairs(one: Labels, other: Labels) -> float:
    total = math.comb(len(one), 2)
    if total == 0:
        raise ValueError(f"labels: {len(one)} rows make no pair")
    _, rows = np.unique(one, return_inverse=True)
    _, columns = np.unique(other, return_inverse=True)
    cells = rows.astype(np.int64) * (columns.max() + 1) + columns
    same_in_both = _pairs_within(cells)
    # Different in both = all - same in one - same in the other + same in both.
    agreeing = total - _pairs_within(rows) - _pairs_within(columns) + 2 * same_in_both
    return agreeing / total


def _pairs_within(labels: Labels) -> int:
    """Pairs of rows with equal labels."""
    _, sizes = np.unique(labels, return_counts=True)
    return sum(math.comb(int(size), 2) for size in sizes)
