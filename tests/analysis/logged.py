"""Logs of rollouts for the tests of what reads texts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.rollout_log import ROLLOUT_SCHEMA, write_rollouts

Texts = Mapping[str, Sequence[str | None]]  # responses by prompt


def write_log(root: Path, steps: Mapping[int, Texts]) -> Path:
    """A run folder whose log has these responses, all of them wrong and in no cluster."""
    for step, texts in steps.items():
        pairs = [(prompt, response) for prompt, responses in texts.items() for response in responses]
        rows = [_row(step, sample, *pair) for sample, pair in enumerate(pairs)]
        write_rollouts(RunPaths(root), pa.Table.from_pylist(rows, ROLLOUT_SCHEMA))
    return root


def _row(step: int, sample: int, prompt: str, response: str | None) -> dict[str, object]:
    numbers = {"reward": 0.0, "shaped_reward": 0.0, "penalty": 0.0, "cluster_size": 0, "tokens": 9}
    return {
        **numbers,
        "step": step,
        "sample": sample,
        "prompt": prompt,
        "prompt_text": f"Question {prompt}?",
        "response": response,
        "correct": False,
        "truncated": False,
    }
