"""Fits the counts that a run's configuration omits to the cluster, in the mode that says which roles share GPUs. Pure.

Every model that DeepSpeed runs gets as many ranks as its GPUs and OpenRLHF's batches allow, on as few nodes as
possible. In mode colocate these are all GPUs, and engines use the same. In mode split they are half of the GPUs,
divided among the models that have their own, and engines get the rest. GPUs that others use count as well: a run waits
for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.batching import Batching, listed
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.plan import Blocks, pack, rooms
from meds_openrlhf.placement.roles import (
    COUNTS,
    ENGINES,
    SECTIONS,
    TENSOR_PARALLEL,
    RoleRequest,
    grouped,
    role_requests,
    value_of,
)
from meds_openrlhf.terminal import counted

CONTROLLER_CPUS = 1
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


def size(
    args: SimpleNamespace, given: Mapping[str, Any], mode: str, nodes: Sequence[Node], shards: int,
    saved_ranks: Mapping[str, int],
) -> dict[str, int]:  # fmt: skip
    """Return the counts that are not among the flags ``given`` to OpenRLHF, for a run on ``nodes``.

    ``args`` are OpenRLHF's arguments, whose counts are not looked at. ``shards`` are the memory's, with a CPU each.
    ``saved_ranks`` are the ranks of the roles in the checkpoint to resume, which stay unchanged.
    """
    decided, room = decided_mode(mode, given), rooms(nodes, shards, whole=True)
    given = {flag: value_of(args, flag) for flag in COUNTS if given.get(flag) is not None}  # with their types
    if decided == "flags":
        return {}
    usable = max(0, min(sum(room), sum(node.whole_cpus(whole=True) for node in nodes) - shards - CONTROLLER_CPUS))
    shared, requests = decided == "colocate", role_requests(args)
    width, engines = given.get(TENSOR_PARALLEL) or 1, given.get(ENGINES)
    engine_gpus = None if engines is None else engines * width
    hosts = {request.role: request.shares_with for request in requests if request.shares_with is not None}
    roles = [request.role for request in requests]
    groups = [group for group in grouped(roles, hosts) if group != ["engines"]]
    budget = usable if shared else usable // 2 if engine_gpus is None else usable - engine_gpus
    most, batching = max(1, budget // len(groups)), Batching.of(args)
    counts: dict[str, int] = {}
    used = 0
    for group in groups:
        fixed = saved_ranks.get(group[0]) or (engine_gpus if shared else None)
        ranks = [fixed] if fixed else [count for count in reversed(batching.even_counts(roles)) if count <= most]
        blocks, gpus = _blocks(given, SECTIONS[group[0]], room, ranks, width if shared else 1, is_fixed=bool(fixed))
        if group[0] == "policy" and batching.dynamic:  # a critic with more ranks would get no batches
            most = min(most, blocks * gpus)
        for section in (SECTIONS[role] for role in group if role in SECTIONS):
            counts |= {f"{section}.num_nodes": blocks, f"{section}.num_gpus_per_node": gpus}
        taken = pack(room, [(blocks, gpus)])
        room = [free - count * gpus for free, count in zip(room, taken[0])] if taken else room
        used += blocks * gpus
    fitting = used if shared else min(sum(free // width * width for free in room), usable - used)
    counts |= {ENGINES: max(1, fitting // width), TENSOR_PARALLEL: width}
    return {flag: count for flag, count in counts.items() if given.get(flag) is None}


def _blocks(
    given: Mapping[str, Any], section: str, room: Sequence[int], ranks: Sequence[int], multiple: int, is_fixed: bool
) -> Blocks:
    """Return the blocks of a DeepSpeed model with the first of ``ranks`` that fits; a small block if none does.

    A number that ``is_fixed`` is returned whether it fits or not.
    """
    blocks, gpus = given.get(f"{section}.num_nodes"), given.get(f"{section}.num_gpus_per_node")
    if blocks is not None and gpus is not None:
        return blocks, gpus
    for count in ranks:
        for per_block in range(max([1, *room]), 0, -1):
            fits = is_fixed or sum(free // per_block for free in room) >= count // per_block
            as_given = blocks in (None, count // per_block) and gpus in (None, per_block)
            if count % per_block == 0 and per_block % multiple == 0 and fits and as_given:
                return count // per_block, per_block
    return blocks or 1, gpus or multiple


def require_batches(args: SimpleNamespace, given: Mapping[str, Any], decided: Collection[str]) -> None:
    """Raise ConfigError if DeepSpeed or OpenRLHF would fail on the batches with a role's number of ranks.

    It names the flag that determines the ranks, which may be the engines' if counts were ``decided`` here.
    """
    batching, requests = Batching.of(args), role_requests(args)
    gpus = {request.role: request.gpus for request in requests}
    critics, most, flag = gpus.get("critic", 0), gpus["policy"], f"{SECTIONS['critic']}.num_gpus_per_node"
    if batching.dynamic and critics > most:  # OpenRLHF deals batches to policy ranks
        hint = (
            f"makes {critics} critic ranks, but train.dynamic_batch_enable allows only as many as policy ranks, {most}"
        )
        raise ConfigError(flag, given.get(flag), f"{hint}. Lower it.")
    for request in requests:
        if request.role == "engines" or batching.takes(request.gpus, request.role):
            continue
        flags = [request.flag, f"{SECTIONS[request.role]}.num_nodes", *([ENGINES] if decided else [])]
        flag = next((flag for flag in flags if given.get(flag) is not None), request.flag)
        counts, value = listed(batching.even_counts(gpus)), given.get(flag)
        ranks = counted(request.gpus, f"{request.role} rank")
        makes = "makes" if value is not None else "is not set, which makes"
        advice = f"Use {counts} ranks." if counts else "No number of ranks divides them; change the batch sizes."
        hint = f"{makes} {ranks}, and the batches ({batching}) do not divide among them. {advice}"
        raise ConfigError(flag, value, hint)


def require_saved_ranks(requests: Sequence[RoleRequest], saved_ranks: Mapping[str, int]) -> None:
    """Raise ConfigError if the number of ranks differs from the checkpoint's, because DeepSpeed could not load it."""
    for role in requests:
        saved = saved_ranks.get(role.role, role.gpus)
        if role.gpus != saved:
            hint = (
                f"makes {role.gpus} {role.role} ranks, but {saved} ranks saved the checkpoint to resume, and DeepSpeed "
                f"loads it only with the same number. Set {SECTIONS[role.role]}.num_nodes and num_gpus_per_node to "
                f"make {saved} ranks."
            )
            raise ConfigError(role.flag, role.block_gpus, hint)
