"""Memory-enhanced dynamic reward shaping (MEDS) for RL training of language models on OpenRLHF.

``features`` reads the feature of an answer, ``memory`` keeps and clusters those of past errors, ``shaping`` turns
cluster sizes into rewards and advantages, ``placement`` assigns GPUs, and ``training`` alone imports OpenRLHF.
CONTRIBUTING.md draws all rooms.

This module exports the parts that other trainers can use and what reads a memory after the training (docs/api.md). It
imports each of them on first access.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "AnswerLocator": "features.answer",
    "FeatureTransform": "features.transform",
    "LayerLogitRecorder": "features.recorder",
    "MemoryPaths": "paths",
    "MemoryShard": "memory.shard",
    "RunPaths": "paths",
    "Sharding": "memory.rows",
    "ShardSettings": "memory.shard",
    "answer_of": "rewards.grading",
    "answer_row": "features.final_answer",
    "capped": "shaping.law",
    "cluster_penalty": "shaping.penalty",
    "group_advantages": "shaping.law",
    "locate_answers": "features.layout",
    "make_method": "config.method",
    "make_rows": "memory.rows",
    "open_memory": "memory.stored",
    "padded_positions": "features.layout",
    "prompt_key": "memory.rows",
    "read_atlas": "report.atlas",
    "recording_of": "tools.replay",
    "replay": "tools.replay",
    "shaped_reward": "shaping.penalty",
    "survey": "memory.stored",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
