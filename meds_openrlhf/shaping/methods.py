"""Chooses, by the run's settings, what shapes a step: the memory's penalty, or another method against collapse.

The training step calls these functions. Arrays are of a step's n rollouts, or of their g groups of N responses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.schema import ExplorationSettings, PenaltySettings
from meds_openrlhf.shaping.exploration import answer_bonus, pass_at_k_advantages
from meds_openrlhf.shaping.penalty import cluster_penalty, shaped_reward
from meds_openrlhf.shaping.weights import KAPPA, cluster_weights, pressure


def shape(
    raw: NDArray[np.floating], correct: NDArray[np.bool_], sizes: NDArray[np.integer], settings: PenaltySettings
) -> NDArray[np.float64]:
    """Return the shaped rewards (n,) float64 of rollouts whose clusters have these ``sizes`` (n,).

    With weights, which act on the advantages (`shaping.weights`), they are the raw ones.
    """
    if settings.form == "weights":
        return raw.astype(np.float64)
    return shaped_reward(raw, cluster_penalty(sizes, alpha=settings.alpha, beta=settings.beta), correct)


def weigh(
    advantages: NDArray[np.floating],
    sizes: NDArray[np.integer],
    wrong: NDArray[np.bool_],
    has_row: NDArray[np.bool_],
    is_extra: NDArray[np.bool_],
    form: str,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what to multiply the advantages (g, N) with, and what to add to them then, both (g, N).

    All arrays are (g, N). ``is_extra`` is true for the groups that are trained on beside the batch, of which all are
    wrong and ``advantages`` are 0.
    """
    weights = cluster_weights(sizes, wrong, has_row) if form == "weights" else np.ones(wrong.shape)
    return pressure(advantages, weights, wrong), np.where(is_extra, -KAPPA * weights, 0.0)


def advantages_instead(rewards: NDArray[np.floating], settings: ExplorationSettings) -> NDArray[np.float64] | None:
    """Return advantages (n,) from ``rewards`` (g, N) that replace the estimator's, or None to keep the estimator's."""
    return None if settings.pass_at_k is None else pass_at_k_advantages(rewards, settings.pass_at_k).reshape(-1)


def advantages_added(
    sizes: NDArray[np.integer], has_row: NDArray[np.bool_], settings: ExplorationSettings
) -> NDArray[np.float64] | None:
    """Return the values (n,) to add to advantages, 0 where ``has_row`` (n,) is false; None to add nothing."""
    if not settings.answer_bonus:
        return None
    bonus = answer_bonus(sizes, weight=settings.answer_bonus, baseline=settings.answer_baseline)
    return np.where(has_row, bonus, 0.0)
