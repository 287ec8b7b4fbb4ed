"""Which roles share GPUs: the OpenRLHF flags of each `meds.placement.mode`, and what follows from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from meds_openrlhf.config.errors import ConfigError

_CONTRADICTIONS = {
    "split": {"train.colocate_all": True, "vllm.enable_sleep": True},
    "colocate": {"train.colocate_all": False, "train.async_enable": True},
    "flags": {},
}


def decided_mode(mode: str, given: Mapping[str, Any]) -> str:
    """Return `flags`, `split` or `colocate`.

    `auto` is colocate, unless the run is asynchronous: then split, since engines generate while the policy trains.
    """
    if mode != "auto":
        return mode
    return "split" if given.get("train.async_enable") else "colocate"


def mode_flags(mode: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags for OpenRLHF to run in a mode, without those that the user set.

    Raises ConfigError if a flag that the user set contradicts the mode.
    """
    decided = decided_mode(mode, given)
    for flag, value in _CONTRADICTIONS[decided].items():
        # In an asynchronous run, train.colocate_all applies only to the DeepSpeed models.
        of_deepspeed = flag == "train.colocate_all" and given.get("train.async_enable")
        if given.get(flag) is value and not of_deepspeed:
            raise ConfigError(flag, value, f"contradicts meds.placement.mode={mode}. Leave it out or change the mode.")
    adam = given.get("actor.optim") in (None, "adam") and given.get("ds.zero_stage") != 0
    flags: dict[str, dict[str, Any]] = {
        "flags": {},
        "split": {"train.colocate_actor_ref": True, "train.colocate_critic_reward": True},
        "colocate": {
            "train.colocate_all": True,
            "vllm.enable_sleep": True,
            "ds.enable_sleep": adam,  # only the states of Adam with ZeRO can be offloaded while others work
            "vllm.gpu_memory_utilization": 0.7,  # as in OpenRLHF's hybrid-engine examples
        },
    }
    return {flag: value for flag, value in flags[decided].items() if given.get(flag) is None}


def hosts(
    roles: Collection[str], *, colocate_all: bool, actor_ref: bool, critic_reward: bool, asynchronous: bool
) -> dict[str, str]:
    """Return for every role without GPUs of its own the role whose GPUs it uses, by the flags of section train."""
    if colocate_all:
        # Engines of an asynchronous run generate while the policy trains, so they never share its GPUs.
        apart = {"policy", "engines"} if asynchronous else {"policy"}
        return {role: "policy" for role in roles if role not in apart}
    pairs = {"reference": ("policy", actor_ref), "reward": ("critic", critic_reward)}
    return {role: host for role, (host, shares) in pairs.items() if shares and role in roles and host in roles}


def grouped(roles: Collection[str], hosts: Mapping[str, str]) -> list[list[str]]:
    """Return the roles that share GPUs, each group beginning with the role whose GPUs they are."""
    return [[role, *(guest for guest in roles if hosts.get(guest) == role)] for role in roles if role not in hosts]
