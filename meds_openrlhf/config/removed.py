"""Settings of earlier versions. Old runs' files have them all; those that ask for what is always done are skipped."""

from __future__ import annotations

from typing import Any

# By full name: the values that change nothing, and what to do about others.
REMOVED: dict[str, tuple[tuple[Any, ...], str]] = {
    "meds.exploration.unlikeliness": ((0,), "Set meds.exploration.pass_at_k or answer_bonus instead."),
    "meds.features.logit_lens": ((False,), "Leave it out; layers are recorded before the final norm, as in the paper."),
    "meds.lora": (({"save": "merged"},), "Leave it out; a policy with LoRA is saved whole, with its adapters merged."),
    "meds.memory.allow_single_cluster": ((None,), "For true, set meds.memory.preset: robust; for false, leave it out."),
    "meds.memory.archive": ((None,), "Leave it out; to keep the memory elsewhere, copy the run folder's memory/."),
    "meds.memory.fsync": ((True,), "Leave it out; rows are always on disk before training continues."),
    "meds.memory.metric": ((None, "euclidean"), "Leave it out; distances are Euclidean."),
    "meds.memory.min_samples": ((None, 1), "Leave it out; it is 1."),
    "meds.memory.neighbor_metric": ((None, "cosine"), "Leave it out; neighbors are the nearest by cosine."),
    "meds.memory.neighbors": ((None, 3), "Leave it out; 3 neighbors vote."),
    "meds.memory.on_lost": (("stop",), "Leave it out; all shards are on the driver's node, beside their files."),
    "meds.memory.prompt_id_key": ((None,), "Leave it out; a memory identifies a prompt by the hash of its text."),
    "meds.memory.selection_epsilon": ((None,), "For auto, set meds.memory.preset: robust; for 0, leave it out."),
    "meds.memory.ties": ((None,), "For smallest, set meds.memory.preset: reference; for nearest, leave it out."),
    "meds.memory.window_rows": ((None,), "Leave it out; all rows take part."),
    "meds.memory.window_visits": ((None,), "Leave it out; all rows take part."),
    "meds.policy.kl_cov": (({"coef": 0.0, "share": 0.002},), "Leave it out; actor.entropy_coef keeps entropy up."),
    "meds.tracking.eigen_window": ((50,), "Leave it out; the window of meds/eigen_ratio_window is 50 steps."),
    "meds.tracking.snapshots": (("reference", "none"), "Leave it out; to keep a memory, copy the run's memory/."),
}


def is_as_before(name: str, value: Any) -> bool:
    """Return whether ``name`` is a removed setting whose value asks for what is always done now."""
    return name in REMOVED and any(value == same and (value is True) == (same is True) for same in REMOVED[name][0])
