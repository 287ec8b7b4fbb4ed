"""The arithmetic of an update as it was when memory, method and trainer were one class, kept to compare with.

`former_update` takes what a step has and returns experiences with their advantages. Nothing here is shared with
`meds_openrlhf.shaping`: a change of its arithmetic shows as a difference of bits.
"""

from __future__ import annotations

import copy
from math import comb
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from openrlhf.trainer.ppo_utils import experience_maker
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.config import MedsSettings

KAPPA, LOWEST, HIGHEST = 0.25, 0.25, 4.0


def former_update(
    maker: Any, experiences: list[Experience], meds: MedsSettings, step: int,
    raw: np.ndarray, correct: np.ndarray, sizes: np.ndarray, has_row: np.ndarray, is_extra: np.ndarray,
) -> list[Experience]:  # fmt: skip
    """``maker`` estimates advantages from rewards; arrays are (n,), in the order of the samples."""
    group = maker.args.rollout.n_samples_per_prompt
    grouped = lambda values: values.reshape(-1, group)  # noqa: E731
    penalty, explore = meds.penalty, meds.exploration
    remembered = has_row & (~correct if meds.memory.remember == "wrong" else True)
    counted_sizes = np.where(remembered, sizes, 0)
    if penalty.shuffled:
        seed = [maker.args.train.seed, step]
        counted_sizes = former_shuffled(grouped(counted_sizes), grouped(remembered), seed).reshape(-1)
    shaped = raw.astype(np.float64)
    if penalty.form == "reward":
        lost = np.minimum(penalty.alpha * np.log(counted_sizes.astype(np.float64) + 1.0), penalty.beta)
        shaped = np.where(correct, raw / (1.0 + lost), raw - lost)
    shaped = shaped.astype(raw.dtype)
    extra = grouped(is_extra)
    counted, counted_raw = (np.where(extra, np.float32(0), grouped(values)) for values in (shaped, raw))
    trained = _from_rewards(maker, experiences, counted, explore.pass_at_k)
    if not np.array_equal(counted, counted_raw):
        for mine, other in zip(trained, _from_rewards(maker, experiences, counted_raw, explore.pass_at_k)):
            capped = torch.minimum(mine.advantages, other.advantages.clamp(min=0))
            right = torch.from_numpy(correct[mine.index])[:, None]
            mine.advantages = torch.where(right, mine.advantages, capped)
    if penalty.form == "weights" or penalty.extras:
        outcome = np.empty(len(raw), np.float32)
        for mine in trained:
            tokens = mine.action_mask.sum(dim=1).clamp(min=1)
            outcome[mine.index] = ((mine.advantages * mine.action_mask).sum(dim=1) / tokens).numpy()
        wrong, outcomes = grouped(~correct), grouped(outcome)
        weights = np.ones(wrong.shape)
        if penalty.form == "weights":
            weights = former_weights(grouped(counted_sizes), wrong, grouped(has_row))
        _change(trained, former_pressure(outcomes, weights, wrong), np.where(extra, -KAPPA * weights, 0.0))
    if explore.answer_bonus:
        bonus = explore.answer_bonus * (1.0 / np.sqrt(np.maximum(counted_sizes, 1)) - explore.answer_baseline)
        _change(trained, np.ones(len(raw)), np.where(has_row, bonus, 0.0))
    for mine in trained:
        mine.rewards = torch.from_numpy(shaped[mine.index])
        mine.info["reward"] = torch.from_numpy(raw[mine.index])
        mine.info["shaped_reward"] = mine.rewards.clone()
    return trained


def _from_rewards(maker: Any, experiences: list[Experience], groups: np.ndarray, k: int | None) -> list[Experience]:
    if k is None:
        equal = groups.max(axis=1, keepdims=True) == groups.min(axis=1, keepdims=True)
        is_relative = maker.advantage_estimator == "group_norm"
        return _estimated(maker, experiences, np.where(equal & is_relative, np.float32(0), groups).reshape(-1))
    copies = _estimated(maker, experiences, np.zeros(groups.size, np.float32))
    _change(copies, np.ones(groups.size), former_pass_at_k(groups, k))
    deviation = groups.std(axis=1, ddof=1).repeat(groups.shape[1])
    for mine in copies:
        mine.info["group_reward_std"] = torch.from_numpy(deviation[mine.index])
    return copies


def _estimated(maker: Any, experiences: list[Experience], rewards: np.ndarray) -> list[Experience]:
    copies = [copy.copy(experience) for experience in experiences]
    for mine in copies:
        mine.info = dict(mine.info)
        mine.rewards = torch.from_numpy(rewards[mine.index])
    with patch.object(experience_maker, "apply_length_penalties", lambda *_: None):
        maker.compute_advantages_and_returns(copies)
    return copies


def _change(experiences: list[Experience], factors: np.ndarray, added: np.ndarray) -> None:
    for mine in experiences:
        by, plus = (torch.from_numpy(values.reshape(-1)[mine.index].astype(np.float32)) for values in (factors, added))
        tokens = plus[:, None] * mine.action_mask
        mine.advantages = mine.advantages * by[:, None] + tokens
        if mine.values is None:  # those that a critic learns were changed, too, which was wrong
            mine.returns = mine.returns * by[:, None] + tokens
            mine.info["return"] = mine.info["return"] * by + plus


def former_pass_at_k(rewards: np.ndarray, k: int) -> np.ndarray:
    size = rewards.shape[1]
    order = np.argsort(rewards, axis=1, kind="stable")
    ascending = np.take_along_axis(rewards.astype(np.float64), order, axis=1)
    below = ascending - ascending[:, -1:]
    is_best = np.array([comb(j, k - 1) / comb(size, k) for j in range(size)])
    given = np.diag([comb(i, k - 1) / comb(size - 1, k - 1) for i in range(size)])
    for j in range(1, size if k > 1 else 1):
        given[:j, j] = comb(j - 1, k - 2) / comb(size - 1, k - 1)
    mean = below @ is_best
    deviation = np.sqrt(np.maximum(below**2 @ is_best - mean**2, 0.0))
    of_sorted = (below @ given.T - mean[:, None]) / (deviation[:, None] + 1e-6)
    advantages = np.empty_like(of_sorted)
    np.put_along_axis(advantages, order, of_sorted, axis=1)
    return advantages


def former_weights(sizes: np.ndarray, wrong: np.ndarray, has_row: np.ndarray) -> np.ndarray:
    largest = np.where(wrong & has_row, sizes, 0).max(axis=1, keepdims=True)
    counts = np.where(wrong, np.where(has_row, sizes, largest) + 1.0, 0.0)
    number = np.maximum(wrong.sum(axis=1, keepdims=True), 1)
    mean = counts.sum(axis=1, keepdims=True) / number
    limited = np.where(wrong, np.clip(counts / np.where(mean > 0, mean, 1.0), LOWEST, HIGHEST), 0.0)
    total = limited.sum(axis=1, keepdims=True)
    return np.where(wrong, limited * (number / np.where(total > 0, total, 1.0)), 1.0)


def former_pressure(advantages: np.ndarray, weights: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    pressed = wrong & (advantages < 0)
    before = np.where(pressed, advantages, 0.0).astype(np.float64)
    after = (before * weights).sum(axis=1, keepdims=True)
    scale = before.sum(axis=1, keepdims=True) / np.where(after < 0, after, 1.0)
    return np.where(pressed, weights * scale, 1.0)


def former_shuffled(sizes: np.ndarray, rows: np.ndarray, seed: list[int]) -> np.ndarray:
    keys = np.where(rows, np.random.default_rng(seed).random(rows.shape), np.inf)
    drawn, places = np.argsort(keys, axis=1), np.argsort(~rows, axis=1, kind="stable")
    result = np.empty_like(sizes)
    np.put_along_axis(result, places, np.take_along_axis(sizes, drawn, axis=1), axis=1)
    return np.where(rows, result, sizes)
