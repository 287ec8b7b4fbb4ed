"""How roles share GPUs: the OpenRLHF flags of each `meds.placement.mode`, and the flags that contradict it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meds_openrlhf.config.errors import ConfigError

# Default share of a GPU for an engine in mode colocate, as in OpenRLHF's hybrid-engine examples.
COLOCATED_UTILIZATION = 0.7

_CONTRADICTIONS = {
    "split": {
        ("train.colocate_all", True): "puts engines and policy on the same GPUs",
        ("vllm.enable_sleep", True): "is for engines that share GPUs",
    },
    "colocate": {
        ("train.async_enable", True): "lets engines generate while the policy trains, so they cannot share GPUs",
        ("train.colocate_all", False): "gives engines and policy their own GPUs",
    },
}


def decided_mode(mode: str, given: Mapping[str, Any]) -> tuple[str, str]:
    """Return `flags`, `split` or `colocate`, and the reason; `auto` is split for an asynchronous run only."""
    if mode == "flags":
        return mode, "OpenRLHF's own as given"
    if mode != "auto":
        return mode, "as the configuration says"
    if given.get("train.async_enable"):
        return "split", "by the rule of auto: with train.async_enable engines generate while the policy trains"
    return "colocate", "by the rule of auto: engines and policy share all GPUs"


def mode_flags(mode: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags for OpenRLHF to run in a mode, without those that the user set.

    Raises ConfigError if a flag that the user set contradicts the mode.
    """
    decided, _ = decided_mode(mode, given)
    for (flag, value), meaning in _CONTRADICTIONS.get(decided, {}).items():
        # In an asynchronous run, train.colocate_all applies only to the DeepSpeed models.
        of_deepspeed = flag == "train.colocate_all" and given.get("train.async_enable")
        if given.get(flag) is value and not of_deepspeed:
            hint = f"{meaning}, which contradicts meds.placement.mode {mode}; leave it out or change the mode"
            raise ConfigError(flag, value, hint)
    flags: dict[str, Any] = {}
    if decided == "colocate":
        adam = given.get("actor.optim") in (None, "adam") and given.get("ds.zero_stage") != 0
        flags = {
            "train.colocate_all": True,
            "vllm.enable_sleep": True,
            "ds.enable_sleep": adam,  # only the states of Adam with ZeRO can be offloaded while others work
            "vllm.gpu_memory_utilization": COLOCATED_UTILIZATION,
        }
    elif decided == "split":
        flags = {"train.colocate_actor_ref": True, "train.colocate_critic_reward": True}
    return {flag: value for flag, value in flags.items() if given.get(flag) is None}
