"""Agreement of two labellings of the same rollouts: clusters with known mistakes, or with a judge's categories.

The measure is that of the paper's ablation (Section 5.3): the share of pairs of rollouts that both labellings put into
the same cluster, or both into different clusters.
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


def agreement(labels: Labels, truth: Labels, *, noise: str = "set") -> Agreement:
    """Compute the agreement of ``labels`` (n,), -1 for noise, with ``truth`` (n,), which has no noise.

    ``noise``: "set" treats all noise as a single cluster, as in the paper; "alone" treats each row of noise as a
    separate cluster. Raises ValueError for another ``noise``, and like `pairwise_agreement`.
    """
    if noise not in NOISE_READINGS:
        raise ValueError(f"noise={noise}: must be one of {', '.join(NOISE_READINGS)}.")
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


def pairwise_agreement(first_labels: Labels, other: Labels, pairs: NDArray[np.int64] | None = None) -> float:
    """Share of pairs of rows for which both labellings (n,) say "same" or both say "different".

    ``pairs`` (p, 2) are indices of rows; None: all n (n - 1) / 2 pairs, counted with the contingency table. Equal
    labels are the same cluster, including -1: noise is a set. Apply `separate_noise` first to treat each row of noise
    as a separate cluster. Raises ValueError if the labellings differ in length or there is no pair.
    """
    if first_labels.shape != other.shape or first_labels.ndim != 1:
        raise ValueError(f"labels: must have the same shape (n,), not {first_labels.shape} and {other.shape}.")
    if pairs is None:
        return _agreement_of_all_pairs(first_labels, other)
    if len(pairs) == 0:
        raise ValueError("pairs: must not be empty.")
    first, second = pairs.T
    same = (first_labels[first] == first_labels[second]) == (other[first] == other[second])
    return float(same.mean())


def separate_noise(labels: Labels) -> NDArray[np.int64]:
    """The same clusters, with each row of noise as an additional cluster, numbered after them."""
    separate = np.array(labels, dtype=np.int64)
    alone = separate == NOISE
    separate[alone] = separate.max(initial=NOISE) + 1 + np.arange(alone.sum())
    return separate


def _agreement_of_all_pairs(first_labels: Labels, other: Labels) -> float:
    total = math.comb(len(first_labels), 2)
    if total == 0:
        raise ValueError(f"labels: must have at least 2 rows, not {len(first_labels)}.")
    _, rows = np.unique(first_labels, return_inverse=True)
    _, columns = np.unique(other, return_inverse=True)
    cells = rows.astype(np.int64) * (columns.max() + 1) + columns
    same_in_both = _pairs_within(cells)
    # Different in both = all - same in one - same in the other + same in both.
    agreeing = total - _pairs_within(rows) - _pairs_within(columns) + 2 * same_in_both
    return agreeing / total


def _pairs_within(labels: Labels) -> int:
    """The number of pairs of rows with equal labels."""
    _, sizes = np.unique(labels, return_counts=True)
    return sum(math.comb(int(size), 2) for size in sizes)
