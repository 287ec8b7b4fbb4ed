"""The metrics of a step with a memory."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.shard import MemoryAnswer


def step_metrics(
    answer: MemoryAnswer,
    raw: NDArray[np.floating],
    shaped: NDArray[np.floating],
    correct: NDArray[np.bool_],
    effect: float,
    recording_seconds: float,
) -> dict[str, float]:
    """Metrics of a step by their public names, for OpenRLHF's status dictionary; docs/metrics.md explains each.

    ``raw`` and ``shaped`` are the rewards (n,) of the step's rollouts, ``correct`` (n,) the verdicts, ``effect`` the
    memory's share of the variance within groups (`penalty_effect`).
    """
    stats = answer.stats
    taken = raw - shaped
    return {
        "meds/reward_raw": float(raw.mean()),
        "meds/reward_shaped": float(shaped.mean()),
        "meds/accuracy": float(correct.mean()),
        "meds/penalty_mean": float(taken.mean()),
        "meds/penalized_share": float((taken > 0).mean()),
        "meds/penalty_effect": effect,
        "meds/penalty_amplitude": math.sqrt(effect),
        "meds/rows_step": float(len(answer.sample)),
        "meds/rows": float(stats.rows),
        "meds/prompts": float(stats.prompts),
        "meds/clusters": float(stats.clusters),
        "meds/noise_share": stats.noise / stats.rows if stats.rows else 0.0,
        "meds/bytes": float(stats.bytes),
        "meds/coverage": stats.solved / stats.visited if stats.visited else 0.0,
        "meds/time_recording_ms": recording_seconds * 1e3,
        **{f"meds/time_{part}_ms": seconds * 1e3 for part, seconds in answer.seconds.items()},
    }
