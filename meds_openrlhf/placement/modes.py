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


def require_consistent(mode: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError if a flag that the user set contradicts the mode."""
    for (flag, value), meaning in _CONTRADICTIONS.get(mode, {}).items():
        # In an asynchronous run, train.colocate_all applies only to the DeepSpeed models.
        if given.get(flag) is value and not (mode == "split" and given.get("train.async_enable")):
            raise ConfigError(
                flag, value, f"{meaning}, which contradicts meds.placement.mode {mode}; leave it out or change the mode"
            )


def mode_flags(mode: str, given: Mapping[str, Any], deepspeed_can_sleep: bool) -> dict[str, Any]:
    """Return the flags for OpenRLHF to run in a mode, without those that the user set."""
    flags: dict[str, Any] = {}
    if mode == "colocate":
        flags = {
            "train.colocate_all": True,
            "vllm.enable_sleep": True,
            "ds.enable_sleep": deepspeed_can_sleep,
            "vllm.gpu_memory_utilization": COLOCATED_UTILIZATION,
        }
    elif mode == "split":
        flags = {"train.colocate_actor_ref": True, "train.colocate_critic_reward": True}
    return {flag: value for flag, value in flags.items() if given.get(flag) is None}
