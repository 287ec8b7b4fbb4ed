"""The metrics of a training step under their public names; docs/metrics.md explains each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.shard import MemoryAnswer
from meds_openrlhf.shaping.penalty import penalty_effect


@dataclass(frozen=True)
class StepFacts:
    """The trainer's data about a step's n rollouts: raw and shaped reward and verdict (n,) each.

    ``group_size``: how many rollouts in a row answer the same prompt.
    ``diversity``: the metrics of `tracking.diversity`; empty if the memory stores answers instead of features.
    """

    raw_reward: NDArray[np.floating]
    shaped_reward: NDArray[np.floating]
    correct: NDArray[np.bool_]
    group_size: int
    has_row: int
    recording_seconds: float
    diversity: Mapping[str, float] = field(default_factory=dict)


def step_metrics(facts: StepFacts, answer: MemoryAnswer) -> dict[str, float]:
    """Metrics by name for OpenRLHF's status dictionary, which W&B, TensorBoard and the console receive."""
    stats = answer.stats
    taken = facts.raw_reward - facts.shaped_reward
    raw, shaped = (reward.reshape(-1, facts.group_size) for reward in (facts.raw_reward, facts.shaped_reward))
    return {
        "meds/reward_raw": float(facts.raw_reward.mean()),
        "meds/reward_shaped": float(facts.shaped_reward.mean()),
        "meds/accuracy": float(facts.correct.mean()),
        "meds/penalty_mean": float(taken.mean()),
        "meds/penalized_share": float((taken > 0).mean()),
        "meds/penalty_effect": penalty_effect(raw, shaped),
        "meds/rows_step": float(facts.has_row),
        "meds/rows": float(stats.rows),
        "meds/prompts": float(stats.prompts),
        "meds/clusters": float(stats.clusters),
        "meds/noise_share": stats.noise / stats.rows if stats.rows else 0.0,
        "meds/bytes": float(stats.bytes),
        **facts.diversity,
        "meds/time_recording_ms": facts.recording_seconds * 1e3,
        **{f"meds/time_{part}_ms": seconds * 1e3 for part, seconds in answer.seconds.items()},
    }
