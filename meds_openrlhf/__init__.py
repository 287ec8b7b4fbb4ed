"""Memory-enhanced dynamic reward shaping (MEDS) for RL training of language models on OpenRLHF.

The rooms: ``config`` (typed settings), ``features`` (the fingerprint of an answer), ``memory`` (fingerprints of past
errors, durable and clustered), ``shaping`` (cluster size to penalty), ``placement`` (who sits on which GPU),
``training`` (the only room that knows OpenRLHF), ``rewards``, ``data``, ``tracking`` and ``cli``.

What any other trainer can use is imported from here (docs/library.md); nothing is loaded before its name is used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "AnswerLocator": "features.answer",
    "FeatureTransform": "features.transform",
    "LayerLogitRecorder": "features.recorder",
    "MemoryPaths": "paths",
    "MemoryShard": "memory.shard",
    "Sharding": "memory.segment",
    "ShardSettings": "memory.shard",
    "cluster_penalty": "shaping.penalty",
    "make_method": "memory.presets",
    "make_rows": "memory.rows",
    "prompt_key": "memory.rows",
    "shaped_reward": "shaping.penalty",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
