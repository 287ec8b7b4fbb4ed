"""The law of all methods: a wrong response never gains from the memory.

Its advantage, the mean over its tokens, is at most max(0, what it would be without the memory). Penalizing the other
wrong responses of a group raises its normalized advantage, so rewards alone do not keep the law (docs/method.md). The
one exception is a method that says so (`Method.may_reward_errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meds_openrlhf.shaping.method import Advantages, Bools, Change, Floats, Method, Step

Floating = TypeVar("Floating", bound=np.floating)
A = TypeVar("A", bound=Advantages)


def capped(shaped: NDArray[Floating], unshaped: NDArray[Floating], correct: NDArray[np.bool_]) -> NDArray[Floating]:
    """Return the advantages ``shaped``, those of wrong responses at most max(0, ``unshaped``).

    ``unshaped`` are the advantages that the same estimator gives without the memory; ``correct`` has the shape of both,
    or broadcasts to it.
    """
    limited: NDArray[Floating] = np.where(correct, shaped, np.minimum(shaped, np.maximum(unshaped, 0)))
    return limited


def lawful(change: Change, outcomes: NDArray[np.floating], correct: Bools) -> Change:
    """Return the change, limited so that a wrong response's advantage is at most max(0, its one in ``outcomes``)."""
    excess = outcomes * change.factor + change.added - np.maximum(outcomes, 0)
    return Change(change.factor, change.added - np.where(correct, 0.0, np.maximum(excess, 0.0)))


def group_advantages(
    shaped: ArrayLike, raw: ArrayLike, correct: ArrayLike, group: int, scale: bool = True
) -> NDArray[np.float64]:
    """Return the advantages (n,) of GRPO from ``shaped`` rewards (n,), within the law.

    ``raw`` (n,) are the rewards without the memory; the ``group`` responses to a prompt are adjacent. Rewards minus
    their group's mean are divided by its deviation, unless ``scale`` is false (Dr. GRPO). Raises ValueError for groups
    of one, and for rewards that are not finite.
    """
    if group < 2 or not (np.isfinite(shaped).all() and np.isfinite(raw).all()):
        raise ValueError(f"group={group}: must be at least 2, and all rewards finite; nothing else can be normalized.")

    def estimate(rewards: ArrayLike) -> NDArray[np.float64]:
        return normalized(np.asarray(rewards, np.float64).reshape(-1, group), scale).reshape(-1)

    return capped(estimate(shaped), estimate(raw), np.asarray(correct, bool))


def normalized(rewards: NDArray[np.floating], scale: bool = True) -> Floats:
    """Return the rewards (g, N) minus their group's mean, divided by its sample deviation if ``scale``; float64."""
    groups = without_equal_groups(rewards.astype(np.float64))
    advantages: Floats = groups - groups.mean(axis=1, keepdims=True)
    if scale:
        advantages /= groups.std(axis=1, ddof=1, keepdims=True) + 1e-6
    return advantages


@dataclass
class ResponseAdvantages:
    """Advantages (g, N), one a response, as `method.Advantages` for trainers that have no others."""

    values: Floats

    def outcomes(self) -> Floats:
        """Return them."""
        return self.values

    def change(self, change: Change) -> None:
        """Apply a change."""
        self.values = self.values * change.factor + change.added

    def cap(self, unshaped: ResponseAdvantages, correct: Bools) -> None:
        """Apply `capped`."""
        self.values = capped(self.values, unshaped.values, correct)


def without_equal_groups(groups: NDArray[Floating]) -> NDArray[Floating]:
    """Return the rewards ``groups`` (g, N), 0 in groups whose rewards are all equal.

    In float32 the mean of sixteen values of -0.2 is not exactly -0.2, and normalization divides the difference by a
    deviation of 0 plus 1e-9. Without this correction a group at the limit of the penalty would get advantages of 15
    instead of 0.
    """
    equal = groups.max(axis=1, keepdims=True) == groups.min(axis=1, keepdims=True)
    differing: NDArray[Floating] = np.where(equal, np.zeros((), groups.dtype), groups)
    return differing


def penalty_effect(raw: NDArray[np.floating], shaped: NDArray[np.floating]) -> float:
    """Return the share of the variance of shaped rewards within groups that the penalties cause, from 0 to 1.

    ``raw`` and ``shaped`` (g, N): the rewards of N responses to each of g prompts. Advantages are relative to the
    group: if all of its wrong responses have the same penalty, normalization undoes it, and the policy learns the same
    as without. The share of a group is therefore what a linear fit of ``shaped`` to ``raw`` leaves of the variance of
    ``shaped``, and 1 if its raw rewards are equal. The result is the mean over groups. Groups whose shaped rewards are
    equal give no advantages and do not count; it is 0 if there are no others.
    """
    x, y = (reward - reward.mean(axis=1, keepdims=True) for reward in (raw.astype(np.float64), shaped))
    teaches = np.ptp(shaped, axis=1) > 0
    if not teaches.any():
        return 0.0
    x, y = x[teaches], y[teaches]
    spread = (x * x).sum(axis=1)
    slope = np.divide((x * y).sum(axis=1), spread, out=np.zeros_like(spread), where=np.ptp(raw[teaches], axis=1) > 0)
    left = y - slope[:, None] * x
    return float(((left * left).sum(axis=1) / (y * y).sum(axis=1)).mean())


def shaped_advantages(
    step: Step, methods: Sequence[Method], estimate: Callable[[NDArray[np.floating], bool], A]
) -> tuple[A, Floats, float]:
    """Return a step's advantages by these methods within the law, the shaped rewards (g, N), and the memory's effect.

    ``estimate`` returns the trainer's advantages from rewards (g, N); if its second argument is true, those from
    rewards of 0, because a method adds the rest. The effect is `penalty_effect` of the rewards, or of the advantages if
    a method weights these.
    """
    shaped = step.reward.astype(np.float64)
    for method in methods:
        shaped = method.rewards(step, shaped)
    counted, raw = (
        np.where(step.is_extra, np.zeros((), step.reward.dtype), rewards.astype(step.reward.dtype))
        for rewards in (shaped, step.reward)
    )
    before = replace(step, cluster_size=np.zeros_like(step.cluster_size))  # as it is without a memory
    estimators = [method for method in methods if method.replaces_estimator]
    bound = [method for method in methods if not (method.replaces_estimator or method.may_reward_errors)]

    def from_rewards(rewards: NDArray[np.floating], step: Step) -> A:
        found = estimate(rewards, bool(estimators))
        _apply(estimators, step, rewards, found)
        return found

    found, is_same = from_rewards(counted, step), np.array_equal(counted, raw)
    effect = 0.0 if is_same else penalty_effect(raw, counted)
    if estimators or not is_same:
        found.cap(from_rewards(raw, before), step.correct)
    effect = _apply(bound, step, counted, found) or effect
    _apply([method for method in methods if method.may_reward_errors], step, counted, found)
    return found, shaped, effect


def _apply(methods: Sequence[Method], step: Step, rewards: NDArray[np.floating], advantages: Advantages) -> float:
    """Apply the methods' changes; return the largest effect of their factors on the advantages."""
    effect = 0.0
    for method in methods:
        change = method.advantages(step, rewards, advantages)
        if change is None:
            continue
        change = Change(*(np.broadcast_to(values, rewards.shape) for values in change))
        if not (method.replaces_estimator or method.may_reward_errors):
            outcomes = advantages.outcomes()
            change = lawful(change, outcomes, step.correct)
            if method.asks_memory and np.any(change.factor != 1):
                effect = max(effect, penalty_effect(outcomes, outcomes * change.factor))
        advantages.change(change)
    return effect
