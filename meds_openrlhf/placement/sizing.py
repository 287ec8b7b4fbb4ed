"""Fits the counts that a run's configuration omits to the cluster, in the mode that says which roles share GPUs. Pure.

Every model that DeepSpeed runs gets as many ranks as its GPUs and OpenRLHF's batches allow, on as few nodes as
possible. In mode colocate these are all GPUs, and engines use the same. In mode split they are half of the GPUs,
divided among the models that have their own, and engines get the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node, plural
from meds_openrlhf.placement.plan import SECTIONS, Demand, RoleRequest, grouped, pack
from meds_openrlhf.placement.recipe import Recipe, listed

ENGINES, TENSOR_PARALLEL = "vllm.num_engines", "vllm.tensor_parallel_size"
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


@dataclass(frozen=True)
class Sizing:
    """A run's mode, and the flags added to those that the user set."""

    mode: str
    flags: dict[str, Any]


def size(
    recipe: Recipe, mode: str, nodes: Sequence[Node], reserved_cpus: int, saved_ranks: Mapping[str, int] | None = None
) -> Sizing:
    """Choose the mode and the counts of a run on ``nodes``, of whose CPUs ``reserved_cpus`` stay free.

    ``saved_ranks`` are the ranks of the roles in the checkpoint to resume, which stay unchanged. Raises ConfigError for
    a tensor parallel size that vLLM cannot use.
    """
    room, decided = [node.room for node in nodes], decided_mode(mode, recipe.given)
    _require_splittable_heads(recipe)
    if decided == "flags":
        return Sizing(decided, {})
    usable = max(0, min(sum(room), sum(node.room_for_cpus for node in nodes) - reserved_cpus))
    flags = mode_flags(mode, recipe.given) | _counts(recipe, room, usable, saved_ranks or {}, decided == "colocate")
    return Sizing(decided, {flag: value for flag, value in flags.items() if recipe.given.get(flag) is None})


def _counts(recipe: Recipe, room: Sequence[int], usable: int, saved: Mapping[str, int], shared: bool) -> dict[str, int]:
    """Return all counts; the caller drops those that the user set."""
    given = recipe.given
    engines, width = given.get(ENGINES), given.get(TENSOR_PARALLEL) or 1
    engine_gpus = None if engines is None else engines * width
    groups = [group for group in grouped(recipe.models, recipe.hosts) if group != ["engines"]]
    budget = usable if shared else usable // 2 if engine_gpus is None else usable - engine_gpus
    most = max(1, budget // len(groups))
    counts: dict[str, int] = {}
    used, left = 0, list(room)
    for group in groups:
        fixed = saved.get(group[0]) or (engine_gpus if shared else None)
        blocks = _blocks(recipe, group[0], left, most, fixed, width if shared else 1)
        if group[0] == "policy" and recipe.batching.dynamic:  # a critic with more ranks would get no batches
            most = min(most, blocks.gpus)
        for section in (SECTIONS[role] for role in group if role in SECTIONS):
            counts |= {f"{section}.num_nodes": blocks.count, f"{section}.num_gpus_per_node": blocks.size}
        taken = pack(left, [blocks])
        left = [free - count * blocks.size for free, count in zip(left, taken[0])] if taken else left
        used += blocks.gpus
    fitting = used if shared else min(sum(free // width * width for free in left), usable - used)
    return {**counts, ENGINES: max(1, fitting // width), TENSOR_PARALLEL: width}


def _blocks(recipe: Recipe, role: str, room: Sequence[int], most: int, fixed: int | None, multiple: int) -> Demand:
    """Return the blocks of a DeepSpeed model with up to ``most`` ranks, or ``fixed``; a small block if none fits."""
    section, largest = SECTIONS[role], max(max(room, default=0), 1)
    blocks, gpus = recipe.given.get(f"{section}.num_nodes"), recipe.given.get(f"{section}.num_gpus_per_node")
    if blocks is not None and gpus is not None:
        return Demand(blocks, gpus)
    counts = [count for count in recipe.batching.even_counts(recipe.models) if count <= most]
    for ranks in [fixed] if fixed else reversed(counts):
        for per_block in range(largest, 0, -1):
            fits = fixed or sum(free // per_block for free in room) >= ranks // per_block
            as_given = blocks in (None, ranks // per_block) and gpus in (None, per_block)
            if ranks % per_block == 0 and per_block % multiple == 0 and fits and as_given:
                return Demand(ranks // per_block, per_block)
    return Demand(blocks or 1, gpus or multiple)


def _require_splittable_heads(recipe: Recipe) -> None:
    """Raise ConfigError for a given tensor parallel size that vLLM cannot split the model over."""
    width, model = recipe.given.get(TENSOR_PARALLEL), recipe.models["engines"]
    if width and model.shape and not model.shape.splits_over(width):
        sizes = [size for size in range(1, model.shape.heads + 1) if model.shape.splits_over(size)]
        heads = f"{model.shape.heads} attention heads and {model.shape.kv_heads} key-value heads"
        raise ConfigError(TENSOR_PARALLEL, width, f"cannot split the {heads} of {model.name}. Use {listed(sizes)}.")


def require_batches(recipe: Recipe, requests: Sequence[RoleRequest], decided: Mapping[str, Any]) -> None:
    """Raise ConfigError if DeepSpeed or OpenRLHF would fail on the batches with a role's number of ranks.

    It names the flag that determines the ranks, which may be the engines' if counts were ``decided`` here.
    """
    gpus = {request.role: request.gpus for request in requests}
    critics, most, flag = gpus.get("critic", 0), gpus["policy"], f"{SECTIONS['critic']}.num_gpus_per_node"
    if recipe.batching.dynamic and critics > most:  # OpenRLHF deals batches to policy ranks
        hint = (
            f"makes {critics} critic ranks, but train.dynamic_batch_enable allows only as many as policy ranks, {most}"
        )
        raise ConfigError(flag, recipe.given.get(flag), f"{hint}. Lower it.")
    for request in requests:
        if request.role == "engines" or recipe.batching.takes(request.gpus, request.role):
            continue
        flags = [request.flag, f"{SECTIONS[request.role]}.num_nodes", *([ENGINES] if decided else [])]
        flag = next((flag for flag in flags if recipe.given.get(flag) is not None), request.flag)
        counts, value = listed(recipe.batching.even_counts(recipe.models)), recipe.given.get(flag)
        ranks = plural(request.gpus, f"{request.role} rank")
        makes = "makes" if value is not None else "is not set, which makes"
        advice = f"Use {counts} ranks." if counts else "No number of ranks divides them; change the batch sizes."
        hint = f"{makes} {ranks}, and the batches ({recipe.batching}) do not divide among them. {advice}"
        raise ConfigError(flag, value, hint)
