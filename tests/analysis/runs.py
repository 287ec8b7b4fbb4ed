"""Small finished runs for the tests of what reads them: real shards, a real rollout log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from meds_openrlhf.columns import ROLLOUT_SCHEMA
from meds_openrlhf.memory.rows import make_rows
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import write_rollouts
from meds_openrlhf.shaping.penalty import cluster_penalty
from tests.memory.written import WrittenMemory

LAYERS = 8
OPENING = "\\boxed{"


@dataclass(frozen=True)
class Rollout:
    """One rollout; ``logits`` None: the memory has no row of it. A null ``text`` is one that was not sampled."""

    prompt: str
    answer: str | None
    correct: bool = False
    logits: Sequence[float] | None = None
    text: str | None = ""
    prompt_text: str = ""


def kind(number: int, spread: float = 0.0, seed: int = 0) -> list[float]:
    """Layer logits of one kind of error: far from those of other kinds, ``spread`` around its middle."""
    middle = np.random.default_rng(1000 + number).normal(size=LAYERS) * 5
    return (middle + spread * np.random.default_rng(seed).normal(size=LAYERS)).tolist()  # type: ignore[no-any-return]


def write_run(root: Path, steps: Sequence[Sequence[Rollout]]) -> Path:
    """A run of these steps, numbered from 1."""
    root.mkdir(parents=True, exist_ok=True)
    memory = WrittenMemory(root / "memory", settings=ShardSettings(layers=LAYERS))
    for step, rollouts in enumerate(steps, start=1):
        memory.step = step - 1
        rows = _remembered(rollouts)
        if len(rows):
            memory.observe(rows)
    memory.stop()
    answers = {
        (step, row["sample"]): (row["label"], row["cluster_size"])
        for step, rows in open_memory(root).rows_by_step()
        for row in rows.to_pylist()
    }
    for step, rollouts in enumerate(steps, start=1):
        _log(root, step, rollouts, answers)
    return root


def write_log(root: Path, steps: Mapping[int, Mapping[str, Sequence[str | None]]]) -> Path:
    """A run's folder with a log alone: responses by step and prompt, all of them wrong and in no cluster."""
    for step, texts in steps.items():
        rollouts = [
            Rollout(prompt, None, text=text, prompt_text=f"Question {prompt}?")
            for prompt, responses in texts.items()
            for text in responses
        ]
        _log(root, step, rollouts, {})
    return root


def _log(
    root: Path, step: int, rollouts: Sequence[Rollout], stored: Mapping[tuple[int, int], tuple[int | None, int]]
) -> None:
    rows = [_row(step, sample, one, stored.get((step, sample))) for sample, one in enumerate(rollouts)]
    write_rollouts(RunPaths(root), pa.Table.from_pylist(rows, ROLLOUT_SCHEMA))


def _remembered(rollouts: Sequence[Rollout]) -> pa.RecordBatch:
    kept = [(sample, one) for sample, one in enumerate(rollouts) if one.logits is not None]
    logits = np.array([one.logits for _, one in kept], np.float32).reshape(len(kept), LAYERS)
    return make_rows([s for s, _ in kept], [o.prompt for _, o in kept], [o.correct for _, o in kept], logits)


def _row(step: int, sample: int, one: Rollout, stored: tuple[int | None, int] | None) -> dict[str, object]:
    label, size = stored or (None, 0)
    reward = 1.0 if one.correct else 0.0
    penalty = 0.0 if one.correct else float(cluster_penalty(np.array([size]), alpha=0.1, beta=0.2)[0])
    text = f"{OPENING}{one.answer}}}" if one.text == "" else one.text
    return {
        "step": step,
        "sample": sample,
        "prompt": one.prompt,
        "prompt_text": one.prompt_text or f"Work out {one.prompt}.",
        "ground_truth": f"truth of {one.prompt}",
        "response": text,
        "answer": one.answer,
        "answer_start": None if text is None or one.answer is None else max(text.rfind(one.answer), 0),
        "correct": one.correct,
        "reward": reward,
        "shaped_reward": reward - penalty,
        "penalty": penalty,
        "label": label,
        "cluster_size": size,
        "tokens": 20,
        "truncated": False,
    }
