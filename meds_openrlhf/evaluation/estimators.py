"""pass@k and maj@k of problems from n samples each, without bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meds_openrlhf.evaluation.samples import Sample

RIGHT = 0  # the vote for the right answer, however it is written
NO_VOTE = -1  # of a sample without an answer


def pass_at_k(n: int, right: ArrayLike, k: int) -> NDArray[np.float64]:
    """The probability that of k samples, drawn from the n without replacement, at least one is right: (P,) float64.

    ``right`` (P,) int counts each problem's right samples. 1 - C(n - c, k) / C(n, k), the unbiased estimator of Chen et
    al. 2021 ("Evaluating Large Language Models Trained on Code", Section 2.1), as a product of n factors, in which
    nothing overflows. Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    counts = np.asarray(right)
    _check_k(k, n)
    if counts.ndim != 1 or not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"right: must be whole numbers, one per problem, and are {counts.dtype} {counts.shape}")
    if counts.size and not (counts.min() >= 0 and counts.max() <= n):
        raise ValueError(f"right: must lie between 0 and n = {n}, and goes from {counts.min()} to {counts.max()}")
    # Each further right sample among the n takes a factor 1 - k/j off the chance to miss them all, down to none.
    factors = np.maximum(1 - k / np.arange(n, 0, -1), 0.0)
    passed = 1 - np.concatenate([[1.0], np.cumprod(factors)])  # (n + 1,), by the number of right samples
    return np.asarray(passed[counts], dtype=np.float64)


def votes_of(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """The votes of one problem's samples, (n,): RIGHT, NO_VOTE, or 1, 2, ... for wrong answers, equal texts alike."""
    wrong: dict[str, int] = {}
    votes = np.full(len(samples), NO_VOTE)
    for position, sample in enumerate(samples):
        if sample.right:
            votes[position] = RIGHT
        elif sample.answer is not None:
            votes[position] = wrong.setdefault(sample.answer, len(wrong) + 1)
    return votes


def majority_at_k(votes: NDArray[np.int64], k: int, *, draws: int = 1000, seed: int = 0) -> NDArray[np.float64]:
    """The probability that the most frequent answer of k samples, drawn without replacement, is right: (P,) float64.

    ``votes`` (P, n) are those of `votes_of`. Of answers that are equally frequent each wins with the same probability;
    where none of the k samples has an answer, the vote is wrong. Exact where k is 1 (then it is pass@1) or n, or there
    are no more than ``draws`` ways to choose; else the mean over that many seeded draws, the same for all problems.
    Raises ValueError unless 1 <= k <= n.
    """
    n = votes.shape[1]
    _check_k(k, n)
    if k == 1:
        return np.asarray((votes == RIGHT).mean(axis=1), dtype=np.float64)
    chosen = _choices(n, k, draws, seed)
    return np.array([_share_right(problem, chosen) if (problem == RIGHT).any() else 0.0 for problem in votes])


def _choices(n: int, k: int, draws: int, seed: int) -> NDArray[np.float32]:
    """Which of the n samples are in each choice of k, as ones in (choices, n): all choices, or ``draws`` of them."""
    if math.comb(n, k) <= draws:
        indices = np.array(list(combinations(range(n), k)))
    else:
        random = np.random.default_rng(seed)
        indices = random.permuted(np.tile(np.arange(n), (draws, 1)), axis=1)[:, :k]
    chosen = np.zeros((len(indices), n), dtype=np.float32)
    np.put_along_axis(chosen, indices, 1.0, axis=1)
    return chosen


def _share_right(votes: NDArray[np.int64], chosen: NDArray[np.float32]) -> float:
    """How often the right answer wins one problem's ``votes`` (n,) over the choices (choices, n)."""
    answers = np.arange(votes.max() + 1)  # NO_VOTE matches none of them
    counts = chosen @ (votes[:, np.newaxis] == answers).astype(np.float32)  # (choices, answers); whole, so exact
    most = counts.max(axis=1)
    winners = (counts == most[:, np.newaxis]).sum(axis=1)
    right_wins = (counts[:, RIGHT] == most) & (most > 0)
    return float((right_wins / winners).mean())


def _check_k(k: int, n: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k: {k} must lie between 1 and the number of samples per problem, {n}")
