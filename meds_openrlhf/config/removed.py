"""Settings of earlier versions that no longer exist: an old configuration gets an answer in one line.

Configurations that earlier versions wrote to run folders name every setting. A removed setting whose value is what is
always done now changes nothing, and is passed over.
"""

from __future__ import annotations

from typing import Any

# By full name: the values that change nothing, and what to do about others.
REMOVED: dict[str, tuple[tuple[Any, ...], str]] = {
    "meds.exploration.unlikeliness": ((0,), "set meds.exploration.pass_at_k or answer_bonus instead"),
    "meds.features.logit_lens": ((False,), "leave it out; layers are recorded before the final norm, as in the paper"),
    "meds.lora": (({"save": "merged"},), "leave it out; a policy with LoRA is saved whole, with its adapters merged"),
    "meds.memory.allow_single_cluster": ((None,), "set meds.memory.preset: robust for true; leave it out for false"),
    "meds.memory.archive": ((None,), "leave it out; to keep the memory elsewhere, copy the run folder's memory/"),
    "meds.memory.fsync": ((True,), "leave it out; rows are always on disk before training goes on"),
    "meds.memory.metric": ((None, "euclidean"), "leave it out; distances are Euclidean"),
    "meds.memory.min_samples": ((None, 1), "leave it out; it is 1"),
    "meds.memory.neighbor_metric": ((None, "cosine"), "leave it out; neighbours are the nearest by cosine"),
    "meds.memory.neighbors": ((None, 3), "leave it out; 3 neighbours vote"),
    "meds.memory.on_lost": (("stop",), "leave it out; all shards are on the driver's node, beside their files"),
    "meds.memory.prompt_id_key": ((None,), "leave it out; a new memory knows a prompt by the hash of its text"),
    "meds.memory.selection_epsilon": ((None,), 'set meds.memory.preset: robust for "auto"; leave it out for 0'),
    "meds.memory.ties": ((None,), 'set meds.memory.preset: reference for "smallest"; leave it out for "nearest"'),
    "meds.memory.window_rows": ((None,), "leave it out; all rows take part"),
    "meds.memory.window_visits": ((None,), "leave it out; all rows take part"),
    "meds.policy.kl_cov": (
        ({"coef": 0.0, "share": 0.002},),
        "leave it out; actor.entropy_coef and meds.policy.entropy_advantage.alpha keep entropy up",
    ),
    "meds.tracking.eigen_window": ((50,), "leave it out; the window of meds/eigen_ratio_window is 50 steps"),
    "meds.tracking.snapshots": (("reference", "none"), "leave it out; to keep a memory, copy the run folder's memory/"),
}


def is_as_before(name: str, value: Any) -> bool:
    """Return whether ``name`` is a removed setting whose value is what is always done now."""
    return name in REMOVED and any(value == same and (value is True) == (same is True) for same in REMOVED[name][0])
