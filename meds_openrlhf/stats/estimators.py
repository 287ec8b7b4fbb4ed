"""Unbiased estimates of pass@k and maj@k from n samples of each problem."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import hypergeom

RIGHT = 0  # vote for the right answer, in any notation
NO_VOTE = -1  # vote of a sample without an answer
CHOICES = 1000  # of k samples, at most


def ks_up_to(n: int) -> list[int]:
    """The powers of two up to ``n``, and ``n``, which is at least 1."""
    return sorted({2**exponent for exponent in range(n.bit_length())} | {n})


def pass_at_k(n: int, right: ArrayLike, k: int) -> NDArray[np.float64]:
    """The probability that k samples, drawn from n without replacement, include a right answer: (P,) float64.

    ``right`` (P,) int counts each problem's right samples c: 1 - C(n - c, k) / C(n, k), the unbiased estimator of Chen
    et al. 2021 ("Evaluating Large Language Models Trained on Code", Section 2.1), for 1 <= k <= n.
    """
    return np.asarray(hypergeom.sf(0, n, right, k))


def majority_at_k(votes: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """The probability that the most frequent answer of k samples, drawn without replacement, is right: (P,) float64.

    ``votes`` (P, n) are RIGHT, NO_VOTE, or the same number for equal wrong answers. Equally frequent answers win with
    the same probability; if none of the k samples has an answer, the vote is wrong. The result is exact if k is 1 (then
    it is pass@1) or n, or if there are at most `CHOICES` ways to choose; otherwise it is the mean over as many seeded
    draws, the same for all problems.
    """
    if k == 1:
        return np.asarray((votes == RIGHT).mean(axis=1), dtype=np.float64)
    chosen = _choices(votes.shape[1], k)
    return np.array([_share_right(problem, chosen) if (problem == RIGHT).any() else 0.0 for problem in votes])


def _choices(n: int, k: int) -> NDArray[np.float32]:
    """A 0/1 matrix (choices, n) of the samples in each choice of k: all choices, or `CHOICES` random ones."""
    if math.comb(n, k) <= CHOICES:
        indices = np.array(list(combinations(range(n), k)))
    else:
        random = np.random.default_rng(0)
        indices = random.permuted(np.tile(np.arange(n), (CHOICES, 1)), axis=1)[:, :k]
    chosen = np.zeros((len(indices), n), dtype=np.float32)
    np.put_along_axis(chosen, indices, 1.0, axis=1)
    return chosen


def _share_right(votes: NDArray[np.int64], chosen: NDArray[np.float32]) -> float:
    """The share of the choices (choices, n) in which the right answer wins a problem's ``votes`` (n,)."""
    answers = np.arange(votes.max() + 1)  # NO_VOTE matches no answer
    counts = chosen @ (votes[:, np.newaxis] == answers).astype(np.float32)  # (choices, answers); integers, so exact
    most = counts.max(axis=1)
    winners = (counts == most[:, np.newaxis]).sum(axis=1)
    right_wins = (counts[:, RIGHT] == most) & (most > 0)
    return float((right_wins / winners).mean())
