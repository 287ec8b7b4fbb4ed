"""Small made-up runs for the report's tests, in the files that a real run writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from meds_openrlhf.columns import ROLLOUT_SCHEMA
from meds_openrlhf.config import MedsSettings, MemorySettings, RunConfig
from meds_openrlhf.config.method import make_method
from meds_openrlhf.memory.rows import Sharding, make_rows
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, write_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import write_rollouts

LAYERS = 4
PENALTY = 0.0  # of every logged rollout
NOBODY = 99  # a mode of which every rollout is far from all others


@dataclass(frozen=True)
class Rollout:
    """One rollout; ``mode`` says where its logits are, and None that it has no row in the memory."""

    prompt: str
    mode: int | None
    answer: str | None = "1"
    correct: bool = False
    text: str | None = "so \\boxed{1}"
    truncated: bool = False


def write_config(paths: RunPaths, preset: str = "robust", remember: str = "wrong", **flags: object) -> None:
    memory = MemorySettings(preset=preset, remember=remember)
    paths.root.mkdir(parents=True, exist_ok=True)
    meds = MedsSettings(run_dir=str(paths.root), memory=memory)
    paths.config.write_text(RunConfig(meds, {"actor.model_name_or_path": "tiny", **flags}).as_yaml())


def write_metrics(paths: RunPaths, steps: int, **metrics: float) -> None:
    paths.root.mkdir(parents=True, exist_ok=True)
    lines = [{"step": step, "meds/reward_raw": step / 10, **metrics} for step in range(1, steps + 1)]
    paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_memory(paths: RunPaths, steps: Sequence[Sequence[Rollout]], preset: str = "robust") -> None:
    """Rows of ``steps``, numbered from 1."""
    layers = 2 if preset == "answers" else LAYERS
    model = {"rows": "final answers"} if preset == "answers" else {"architecture": "Test", "layers": layers}
    write_format(paths.memory, MemoryFormat(1, layers, model))
    settings = ShardSettings(layers=layers, method=make_method(preset))
    shard = MemoryShard(paths.memory, Sharding(0, 1), settings)
    generator = np.random.default_rng(0)
    for number, rollouts in enumerate(steps, start=1):
        kept = [(i, one) for i, one in enumerate(rollouts) if one.mode is not None]
        logits = np.array([_logits(one, layers, generator) for _, one in kept], np.float32).reshape(-1, layers)
        rows = make_rows([i for i, _ in kept], [o.prompt for _, o in kept], [o.correct for _, o in kept], logits)
        shard.observe(number, rows)
    shard.close()


def _logits(rollout: Rollout, layers: int, generator: np.random.Generator) -> np.ndarray:
    mode = rollout.mode
    assert mode is not None
    if layers == 2:
        return np.array([mode, 1.0])
    if mode == NOBODY:
        return generator.normal(size=layers) * 5
    scatter = 0.0 if rollout.correct else 0.01
    return np.roll([9.0, 1.0, 9.0 - 4 * mode, 3.0 * mode - 5], mode) + scatter * generator.normal(size=layers)


def write_log(
    paths: RunPaths, steps: Sequence[Sequence[Rollout]], question: str = "What is {}?", truth: str | None = None
) -> None:
    for step, rollouts in enumerate(steps, start=1):
        rows = [
            {"step": step, "sample": sample, "ground_truth": truth, **_row(one, question)}
            for sample, one in enumerate(rollouts)
        ]
        write_rollouts(paths, pa.Table.from_pylist(rows, ROLLOUT_SCHEMA))


def _row(one: Rollout, question: str) -> dict[str, object]:
    start = -1 if one.text is None or one.answer is None else one.text.rfind(one.answer)
    reward = float(one.correct)
    return {
        "prompt": one.prompt, "prompt_text": question.format(one.prompt), "response": one.text, "answer": one.answer,
        "answer_start": None if start == -1 else start, "correct": one.correct, "reward": reward,
        "shaped_reward": reward - PENALTY, "penalty": PENALTY, "cluster_size": 0, "tokens": 1,
        "truncated": one.truncated,
    }  # fmt: skip


# Prompt a: mode 1 in each visit, mode 2 in the first only. Prompt b: mode 0 once, and two of their own.
RUN = [
    [
        Rollout("a", 1, "12", text="step one \\boxed{12}"), Rollout("a", 1, "12", text="another \\boxed{12}"),
        Rollout("a", 2, "20", text="two \\boxed{20}"), Rollout("a", 2, "21", text="two again \\boxed{21}"),
        Rollout("a", None, "7", correct=True, text="right \\boxed{7}"), Rollout("a", None, None, text="no box"),
    ],
    [
        Rollout("b", 0, "3"), Rollout("b", 0, "3", text=None), Rollout("b", NOBODY, "4"), Rollout("b", NOBODY, "5"),
    ],
    [
        Rollout("a", 1, "12", text=None), Rollout("a", 1, "13", text="other \\boxed{13}"),
        Rollout("a", None, "7", correct=True, text="right again \\boxed{7}"),
        Rollout("a", None, "8", correct=True, text=None),
    ],
]  # fmt: skip


def write_run(root: Path, steps: Sequence[Sequence[Rollout]] = RUN, truth: str | None = None) -> RunPaths:
    """Everything that a run has."""
    paths = RunPaths(root)
    write_config(paths)
    write_metrics(paths, len(steps))
    write_memory(paths, steps)
    write_log(paths, steps, truth=truth)
    return paths
