"""Names that this version knows and does not have: at their defaults they are read as if they were absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from meds_openrlhf.config.errors import ConfigError

# Settings by full name, with their defaults.
REMOVED: dict[str, Any] = {
    "meds.features.answer_openings": ["\\boxed{"],
    "meds.memory.branch_from": None,
    "meds.penalty.scope": "history",
    "meds.rollout.keep_all_wrong": False,
}
LEAVE_OUT = "Leave it out, or use the version that wrote it."


def without_removed(
    tree: Mapping[Any, Any], removed: Mapping[str, Any] = REMOVED, advice: str = LEAVE_OUT, prefix: str = ""
) -> dict[Any, Any]:
    """Return a mapping with nested or dotted keys without the ``removed`` names, which are given with their defaults.

    ``prefix`` precedes every key. Raises ConfigError, with the ``advice``, for a removed name with another value.
    """
    kept = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            kept[key] = without_removed(value, removed, advice, f"{name}.")
        elif name not in removed:
            kept[key] = value
        elif not _is_same(value, removed[name]):
            raise ConfigError(name, value, f"was removed, and only {json.dumps(removed[name])} is read. {advice}")
    return kept


def _is_same(value: Any, default: Any) -> bool:
    value = list(value) if isinstance(value, tuple) else value
    return type(value) is type(default) and bool(value == default)
