"""The metrics of a training step under their public names; docs/metrics.md explains each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.features.moments import NO_MOMENTS, Moments, merge_moments
from meds_openrlhf.files import write_atomically
from meds_openrlhf.memory.shard import MemoryAnswer
from meds_openrlhf.shaping.penalty import penalty_effect

WINDOW = 50  # steps


@dataclass(frozen=True)
class StepFacts:
    """The trainer's data about a step's n rollouts: raw and shaped reward and verdict (n,) each.

    ``group_size``: how many rollouts in a row answer the same prompt.
    ``diversity``: the metrics of `DiversityTracker`; empty if the memory stores answers instead of features.
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


class DiversityTracker:
    """Eigen ratios of the layer logits of wrong and of right rollouts: of a step, of the last ``window`` and of all.

    The memory's shards keep the moments of the stored (wrong) rollouts. Right rollouts are not stored, so their moments
    are here, as those of the sliding window. Checkpoints include them.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._remembered: deque[Moments] = deque(maxlen=window)  # of each step
        self._right: deque[Moments] = deque(maxlen=window)
        self._all_right = deque([NO_MOMENTS], maxlen=1)
        self._saved = {"remembered": self._remembered, "right": self._right, "all_right": self._all_right}

    def add(self, remembered: NDArray[np.float64], right: NDArray[np.float64], stored: Moments) -> dict[str, float]:
        """Add a step's features: of the stored rollouts (n, d), and of all right rollouts (m, d); returns the metrics.

        ``stored`` are the moments of all stored rows. A metric is left out if there are too few vectors for it.
        """
        self._remembered.append(Moments.of(remembered))
        self._right.append(Moments.of(right))
        self._all_right.append(self._all_right[0].merge(self._right[-1]))
        return {**_ratios("", self._remembered, stored), **_ratios("_right", self._right, self._all_right[0])}

    def save(self, path: Path) -> None:
        """Write the state that a resumed run needs."""
        arrays = {
            f"{name}_{part}": np.array([getattr(moments, part) for moments in steps])
            for name, steps in self._saved.items()
            for part in ("count", "mean", "scatter")
        }
        content = BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]
        write_atomically(path, content.getvalue())

    def load(self, path: Path) -> None:
        """Restore the saved state, without unpickling."""
        with np.load(path, allow_pickle=False) as saved:
            for name, steps in self._saved.items():
                steps.clear()
                parts = zip(saved[f"{name}_count"].tolist(), saved[f"{name}_mean"], saved[f"{name}_scatter"])
                steps.extend(Moments(count, mean, scatter) for count, mean, scatter in parts)


def _ratios(kind: str, steps: deque[Moments], total: Moments) -> dict[str, float]:
    spans = {"all": total, "window": merge_moments(list(steps)), "step": steps[-1]}
    ratios = {f"meds/eigen_ratio{kind}_{span}": moments.eigen_ratio() for span, moments in spans.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}
