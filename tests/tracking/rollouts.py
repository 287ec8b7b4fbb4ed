"""Rollouts of a step as the trainer hands them over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meds_openrlhf.arithmetic.char_tokenizer import build_char_tokenizer
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.tracking.rollout_recorder import StepRollouts

TOKENIZER = build_char_tokenizer()


def step_rollouts(
    step: int, responses: Sequence[list[tuple[str, bool]]], labels: Sequence[int | None], **given: Any
) -> StepRollouts:
    """Responses as pieces of text, each the policy's own or not; of two prompts in turn, wrong unless ``given``."""
    pieces = [[(TOKENIZER.encode(text, add_special_tokens=False), own) for text, own in one] for one in responses]
    n = len(responses)
    fields = {
        "step": step,
        "sample": np.arange(n, dtype=np.int32),
        "prompt": [f"key {i % 2}" for i in range(n)],
        "prompt_text": [f"prompt {i % 2}" for i in range(n)],
        "ground_truth": [("7", None)[i % 2] for i in range(n)],
        "tokens": np.array([token for one in pieces for ids, _ in one for token in ids], np.int32),
        "lengths": np.array([sum(len(ids) for ids, _ in one) for one in pieces]),
        "generated": np.array([own for one in pieces for ids, own in one for _ in ids], bool),
        "correct": np.zeros(n, bool),
        "reward": np.zeros(n, np.float32),
        "shaped_reward": np.full(n, -0.125, np.float32),
        "label": np.array([UNASSIGNED if label is None else label for label in labels], np.int32),
        "cluster_size": np.array([0 if label is None else 5 - label for label in labels], np.int32),
        "truncated": np.zeros(n, bool),
    }
    return StepRollouts(**{**fields, **given})
