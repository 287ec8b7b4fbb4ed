"""Unbiased estimates of pass@k and maj@k from n samples of each problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meds_openrlhf.evaluation.samples import Sample
from meds_openrlhf.features.final_answer import same_answer_form
from meds_openrlhf.rewards.equality import equal

RIGHT = 0  # vote for the right answer, in any notation
NO_VOTE = -1  # vote of a sample without an answer


def pass_at_k(n: int, right: ArrayLike, k: int) -> NDArray[np.float64]:
    """The probability that k samples, drawn from n without replacement, include a right answer: (P,) float64.

    ``right`` (P,) int counts each problem's right samples c. Computes 1 - C(n - c, k) / C(n, k), the unbiased estimator
    of Chen et al. 2021 ("Evaluating Large Language Models Trained on Code", Section 2.1), as a product of n factors,
    which cannot overflow. Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    counts = np.asarray(right)
    _check_k(k, n)
    if counts.ndim != 1 or not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"right: must be integers, one per problem, not {counts.dtype} {counts.shape}.")
    if counts.size and not (counts.min() >= 0 and counts.max() <= n):
        raise ValueError(f"right: must be from 0 to n, {n}, but goes from {counts.min()} to {counts.max()}.")
    # Each additional right sample multiplies the chance of missing all of them by 1 - k/j, or by 0 if j < k.
    factors = np.maximum(1 - k / np.arange(n, 0, -1), 0.0)
    passed = 1 - np.concatenate([[1.0], np.cumprod(factors)])  # (n + 1,), indexed by the number of right samples
    return np.asarray(passed[counts], dtype=np.float64)


def votes_of(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """The votes of a problem's samples, (n,): RIGHT, NO_VOTE, or for wrong answers 1, 2, ..., the same if equal.

    Wrong answers are equal as right ones are: as mathematics, however they are written.
    """
    votes = np.full(len(samples), NO_VOTE)
    wrong: dict[str, int] = {}
    known: list[str] = []  # an answer of each vote from 1 on
    for position, sample in enumerate(samples):
        if sample.right:
            votes[position] = RIGHT
        elif sample.answer is not None:
            form = same_answer_form(sample.answer)
            if form not in wrong:
                wrong[form] = _vote(sample.answer, known)
            votes[position] = wrong[form]
    return votes


def _vote(answer: str, known: list[str]) -> int:
    """The vote of the first ``known`` answer that equals this one; or a new vote, with which the answer is known."""
    for vote, other in enumerate(known, 1):
        verdict = equal(other, answer)
        if verdict is None:  # it takes too long, and would with all others
            break
        if verdict:
            return vote
    known.append(answer)
    return len(known)


def majority_at_k(votes: NDArray[np.int64], k: int, *, draws: int = 1000, seed: int = 0) -> NDArray[np.float64]:
    """The probability that the most frequent answer of k samples, drawn without replacement, is right: (P,) float64.

    ``votes`` (P, n) come from `votes_of`. Equally frequent answers win with the same probability; if none of the k
    samples has an answer, the vote is wrong. The result is exact if k is 1 (then it is pass@1) or n, or if there are at
    most ``draws`` ways to choose; otherwise it is the mean over ``draws`` seeded draws, the same for all problems.
    Raises ValueError unless 1 <= k <= n.
    """
    n = votes.shape[1]
    _check_k(k, n)
    if k == 1:
        return np.asarray((votes == RIGHT).mean(axis=1), dtype=np.float64)
    chosen = _choices(n, k, draws, seed)
    return np.array([_share_right(problem, chosen) if (problem == RIGHT).any() else 0.0 for problem in votes])


def _choices(n: int, k: int, draws: int, seed: int) -> NDArray[np.float32]:
    """A 0/1 matrix (choices, n) of the samples in each choice of k: all choices, or ``draws`` random choices."""
    if math.comb(n, k) <= draws:
        indices = np.array(list(combinations(range(n), k)))
    else:
        random = np.random.default_rng(seed)
        indices = random.permuted(np.tile(np.arange(n), (draws, 1)), axis=1)[:, :k]
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


def _check_k(k: int, n: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k={k}: must be from 1 to n, {n}.")
