"""Settings of earlier versions that no longer exist, so that an old configuration gets an answer in one line."""

from __future__ import annotations

REMOVED: dict[str, str] = {
    "meds.exploration.unlikeliness": "leave it out; pass_at_k and answer_bonus are the other methods that can be set.",
    "meds.features.logit_lens": "leave it out; layers are recorded before the final norm, as in the paper.",
    "meds.lora": "leave it out; a policy with LoRA is saved as a whole model, with its adapters merged.",
    "meds.memory.prompt_id_key": "leave it out; a prompt is now known by the hash of its text, in a new memory.",
    "meds.policy.kl_cov": "leave it out; actor.entropy_coef and meds.policy.entropy_advantage.alpha keep entropy up.",
}
"""What to do about each removed setting, by its full name."""
