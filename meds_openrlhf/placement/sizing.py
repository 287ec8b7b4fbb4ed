"""Chooses counts that a run's configuration omits, and the mode for `auto`, to fit the cluster. Pure.

docs/cluster-plan.md describes the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node, smallest_gpu_memory
from meds_openrlhf.placement.memory_estimate import GB, footprints, sequences_held, together
from meds_openrlhf.placement.modes import mode_flags
from meds_openrlhf.placement.packing import Demand, pack
from meds_openrlhf.placement.recipe import Recipe

SECTIONS = {"policy": "actor", "reference": "ref", "critic": "critic", "reward": "reward"}
# The least number of full-length sequences in an engine's KV cache; with fewer it generates in small batches.
DECENT_SEQUENCES = 32
# `auto` shares GPUs if the estimated peak is at most this fraction of their memory; the margin covers estimate errors.
COLOCATE_UP_TO = 0.95
MODE = "meds.placement.mode"
TENSOR_PARALLEL = "vllm.tensor_parallel_size"


@dataclass(frozen=True)
class Sizing:
    """A run's mode, the reason for it, and the flags added to those that the user set."""

    mode: str
    why: str
    flags: dict[str, Any]


@dataclass(frozen=True)
class Room:
    """Free bundles per node, and how many of them are usable if CPUs stay free for shards and controllers."""

    nodes: tuple[int, ...]
    usable: int
    gpu_memory: float | None  # bytes

    @staticmethod
    def of(nodes: Sequence[Node], reserved_cpus: int) -> Room:
        """Return the room of a cluster, with ``reserved_cpus`` for memory shards and controllers."""
        rooms = tuple(node.room for node in nodes)
        cpus = sum(node.room_for_cpus for node in nodes) - reserved_cpus
        memory = smallest_gpu_memory(list(nodes))
        return Room(rooms, max(0, min(sum(rooms), cpus)), memory * GB if memory else None)


def size(recipe: Recipe, mode: str, room: Room, saved_ranks: Mapping[str, int] | None = None) -> Sizing:
    """Choose the mode and the counts of a run on a cluster with ``room``.

    ``saved_ranks`` are the ranks of the roles in the checkpoint to resume, which stay unchanged. Raises ConfigError if
    `auto` lacks the figures to choose, or if OpenRLHF cannot split its batches over the ranks.
    """
    saved = saved_ranks or {}
    _require_splittable_heads(recipe, max(room.nodes, default=0))
    if mode == "flags":
        return Sizing(mode, "OpenRLHF's own as given", {})
    if not recipe.even_counts():
        hint = f"cannot be split over any number of policy ranks ({recipe.batches})"
        raise ConfigError("train.batch_size", recipe.train_batch, hint)
    if mode == "auto":
        return _choose(recipe, room, saved)
    return _sized(recipe, mode, "as the configuration says", room, saved)


def _choose(recipe: Recipe, room: Room, saved: Mapping[str, int]) -> Sizing:
    """Choose the mode by the rule of `auto`."""
    _require_figures(recipe, room)
    if recipe.asynchronous:
        return _sized(
            recipe,
            "split",
            "chosen by auto: with train.async_enable engines generate while the policy trains",
            room,
            saved,
        )
    flag = recipe.given.get("train.colocate_all")
    if flag is not None:
        return _sized(
            recipe, "colocate" if flag else "split", f"chosen by auto: train.colocate_all is {flag}", room, saved
        )
    if _cannot_share(recipe, _tensor_parallel(recipe, room)):
        return _sized(recipe, "split", "chosen by auto: the roles' counts that are given differ", room, saved)
    sizing = _sized(recipe, "colocate", "", room, saved)
    peak, memory = _colocated_peak(recipe, sizing, room), room.gpu_memory or 0.0
    figures = f"about {peak / GB:.0f} of a GPU's {memory / GB:.0f} GB"
    if room.usable < 2:
        return replace(sizing, why="chosen by auto: there are no two GPUs to split")
    if peak <= COLOCATE_UP_TO * memory:
        return replace(sizing, why=f"chosen by auto: sharing takes {figures}, and none waits while others work")
    return _sized(recipe, "split", f"chosen by auto: sharing would take {figures}", room, saved)


def _require_figures(recipe: Recipe, room: Room) -> None:
    for found in recipe.models.values():
        if found.shape is None:
            reason = (
                f"cannot choose without the size of {found.name} ({found.source}); name the mode, split or colocate"
            )
            raise ConfigError(MODE, "auto", reason)
    if room.gpu_memory is None:
        reason = (
            "cannot choose without the GPUs' memory, and Ray names no accelerator type that is known; name the mode"
        )
        raise ConfigError(MODE, "auto", f"{reason}, split or colocate")


def _require_splittable_heads(recipe: Recipe, largest: int) -> None:
    """Raise ConfigError for a given tensor parallel size that vLLM cannot split the model over."""
    given, found = recipe.given.get(TENSOR_PARALLEL), recipe.models["engines"]
    if given is None or found.shape is None or found.shape.splits_over(given):
        return
    sizes = [size for size in range(1, max(largest, 1) + 1) if found.shape.splits_over(size)]
    raise ConfigError(
        TENSOR_PARALLEL,
        given,
        f"cannot split {found.name}, which has {found.shape.heads} attention heads and {found.shape.kv_heads} of keys "
        f"and values; on these nodes {listed(sizes)} can",
    )


def require_splittable_batches(recipe: Recipe, ranks: Mapping[str, int], decided: Mapping[str, Any]) -> None:
    """Raise ConfigError if DeepSpeed or OpenRLHF rejects the batches for a role's number of ranks.

    ``decided`` are the counts that were chosen here; if there are any, the error names the flag that they depend on.
    """
    for role, count in ranks.items():
        if not recipe.takes(count, role):
            flag = _flag_that_decides(role, recipe.given, decided)
            raise ConfigError(
                flag,
                recipe.given.get(flag, decided.get(flag)),
                f"makes {count} {role} ranks, over which OpenRLHF cannot split its batches ({recipe.batches}); it "
                f"can over {listed(recipe.even_counts()) or 'no number of them'}",
            )


def _flag_that_decides(role: str, given: Mapping[str, Any], decided: Mapping[str, Any]) -> str:
    """Return the user's flag that determines the role's ranks; by default the role's num_gpus_per_node."""
    section = SECTIONS[role]
    flags = [f"{section}.num_gpus_per_node", f"{section}.num_nodes"]
    others = ["vllm.num_engines", TENSOR_PARALLEL, "actor.num_gpus_per_node", "actor.num_nodes"]
    found = [flag for flag in flags + others * bool(decided) if given.get(flag) is not None]
    return found[0] if found else flags[0]


def listed(counts: Sequence[int]) -> str:
    """Format counts as in ``1, 2, 4, 8, 16, … 256``."""
    if len(counts) <= 6:
        return ", ".join(map(str, counts))
    return f"{', '.join(map(str, counts[:5]))}, … {counts[-1]}"


def _cannot_share(recipe: Recipe, tensor_parallel: int) -> bool:
    """Return whether the given counts lead to different numbers of GPUs, so that not all roles can share them.

    If only one count of a role is given (nodes or GPUs per node), the role's number of GPUs is a multiple of it.
    """
    given, totals, parts = recipe.given, set(), []
    for role in recipe.roles:
        if role == "engines":
            counts = [given.get("vllm.num_engines"), tensor_parallel]
        else:
            counts = [given.get(f"{SECTIONS[role]}.{name}") for name in ("num_nodes", "num_gpus_per_node")]
        product = _product(*counts)
        if product is None:
            parts += [count for count in counts if count is not None]
        else:
            totals.add(product)
    return len(totals) > 1 or any(total % part for total in totals for part in parts)


def _product(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first * second


def with_mode(recipe: Recipe, flags: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the mode's flags applied."""
    return replace(
        recipe,
        engines_sleep=flags.get("vllm.enable_sleep", recipe.engines_sleep),
        deepspeed_sleeps=flags.get("ds.enable_sleep", recipe.deepspeed_sleeps),
        gpu_memory_utilization=flags.get("vllm.gpu_memory_utilization", recipe.gpu_memory_utilization),
    )


def _sized(recipe: Recipe, mode: str, why: str, room: Room, saved: Mapping[str, int]) -> Sizing:
    flags = mode_flags(mode, recipe.given, recipe.deepspeed_can_sleep)
    recipe = with_mode(recipe, flags)
    tensor_parallel = _tensor_parallel(recipe, room)
    fill = _colocate if mode == "colocate" else _split
    counts = fill(recipe, room, tensor_parallel, saved)
    missing = {key: count for key, count in counts.items() if recipe.given.get(key) is None}
    decided = {**recipe.given, **missing}
    ranks = {"policy": decided["actor.num_nodes"] * decided["actor.num_gpus_per_node"]}
    require_splittable_batches(recipe, ranks, missing)
    return Sizing(mode, why, {**flags, **missing})


def _tensor_parallel(recipe: Recipe, room: Room) -> int:
    """Return the given size, or the smallest power of two for which weights and a sufficient KV cache fit.

    If none does, returns the largest power of two that the nodes and the model's heads allow.
    """
    given: int | None = recipe.given.get(TENSOR_PARALLEL)
    if given is not None:
        return given
    shape, chosen = recipe.models["engines"].shape, 1
    if shape is None or room.gpu_memory is None:
        return 1
    while sequences_held(recipe, shape, chosen, room.gpu_memory) < DECENT_SEQUENCES:
        if 2 * chosen > max(room.nodes, default=0) or not shape.splits_over(2 * chosen):
            break
        chosen *= 2
    return chosen


def _colocate(recipe: Recipe, room: Room, tensor_parallel: int, saved: Mapping[str, int]) -> dict[str, int]:
    """Use as many ranks as the GPUs and the batches allow, with engines on all of these GPUs."""
    engines = recipe.given.get("vllm.num_engines")
    fixed = saved.get("policy") or _product(engines, tensor_parallel)
    nodes, gpus = _layout(recipe, "policy", room.nodes, room.usable, fixed, multiple=tensor_parallel)
    counts = {"vllm.num_engines": nodes * gpus // tensor_parallel, "vllm.tensor_parallel_size": tensor_parallel}
    for role in recipe.roles:
        if role in SECTIONS:
            counts |= _in_all(recipe, SECTIONS[role], nodes, gpus)
    return counts


def _in_all(recipe: Recipe, section: str, nodes: int, gpus: int) -> dict[str, int]:
    """Return counts of a role with ``nodes * gpus`` ranks, in other blocks if the user gave one of its counts."""
    ranks, per_node = nodes * gpus, recipe.given.get(f"{section}.num_gpus_per_node")
    own_nodes = recipe.given.get(f"{section}.num_nodes") or (nodes if per_node is None else max(1, ranks // per_node))
    return {f"{section}.num_nodes": own_nodes, f"{section}.num_gpus_per_node": max(1, ranks // own_nodes)}


def _split(recipe: Recipe, room: Room, tensor_parallel: int, saved: Mapping[str, int]) -> dict[str, int]:
    """Give half of the GPUs to DeepSpeed's models, as whole nodes if possible, and the rest to engines."""
    owners = _owners(recipe)
    engines = recipe.given.get("vllm.num_engines")
    for_deepspeed = room.usable // 2 if engines is None else room.usable - engines * tensor_parallel
    counts: dict[str, int] = {}
    demands: list[Demand] = []
    for owner, guests in owners.items():
        left = _left(room.nodes, demands)
        nodes, gpus = _layout(recipe, owner, left, max(1, for_deepspeed // len(owners)), saved.get(owner))
        demands.append(Demand(nodes, gpus))
        for role in (owner, *guests):
            counts |= {f"{SECTIONS[role]}.num_nodes": nodes, f"{SECTIONS[role]}.num_gpus_per_node": gpus}
    used = sum(demand.count * demand.size for demand in demands)
    whole = sum(free // tensor_parallel for free in _left(room.nodes, demands))
    counts["vllm.num_engines"] = max(1, min(whole, (room.usable - used) // tensor_parallel))
    counts["vllm.tensor_parallel_size"] = tensor_parallel
    return counts


def _owners(recipe: Recipe) -> dict[str, list[str]]:
    """Return the roles with their own GPUs in mode split, except engines, and the roles that share these GPUs."""
    given, others = recipe.given, [role for role in recipe.roles if role in SECTIONS and role != "policy"]
    if given.get("train.colocate_all"):  # an asynchronous run with the DeepSpeed models on the same GPUs
        return {"policy": others}
    owners: dict[str, list[str]] = {"policy": []}
    hosts = {"reference": ("policy", "train.colocate_actor_ref"), "reward": ("critic", "train.colocate_critic_reward")}
    for role in others:
        host, flag = hosts.get(role, ("", ""))
        if host in owners and given.get(flag) is not False:
            owners[host].append(role)
        else:
            owners[role] = []
    return owners


def _left(room: Sequence[int], demands: list[Demand]) -> tuple[int, ...]:
    packed = pack(room, demands) or []
    return tuple(
        free - sum(blocks[index] * demand.size for blocks, demand in zip(packed, demands))
        for index, free in enumerate(room)
    )


def _layout(
    recipe: Recipe, role: str, room: Sequence[int], budget: int, fixed: int | None, multiple: int = 1
) -> tuple[int, int]:
    """Return nodes and GPUs per node of a DeepSpeed model: prefer whole nodes, then most ranks, then fewest nodes.

    If ``fixed`` is given, it is the number of ranks. If nothing fits, returns the smallest request, for which planning
    then reports the shortage.
    """
    section = SECTIONS[role]
    nodes, gpus = recipe.given.get(f"{section}.num_nodes"), recipe.given.get(f"{section}.num_gpus_per_node")
    if nodes is not None and gpus is not None:
        return nodes, gpus
    limit = budget if fixed is None else max(fixed, budget)

    def fits(ranks: int) -> bool:
        return ranks == fixed if fixed is not None else ranks <= limit and recipe.splits_evenly(ranks)

    largest = max(room, default=0)
    found = [
        (per_node == largest, count * per_node, per_node)
        for count, per_node in _blocks(room, fits)
        if per_node % multiple == 0 and nodes in (None, count) and gpus in (None, per_node)
    ]
    if found:
        _, ranks, per_node = max(found)
        return ranks // per_node, per_node
    return _least(nodes, gpus, fixed, multiple, largest)


def _blocks(room: Sequence[int], fits: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
    for per_node in range(1, max(room, default=0) + 1):
        able = sum(free >= per_node for free in room)
        yield from ((count, per_node) for count in range(1, able + 1) if fits(count * per_node))


def _least(nodes: int | None, gpus: int | None, fixed: int | None, multiple: int, largest: int) -> tuple[int, int]:
    ranks = fixed or (nodes or 1) * (gpus or multiple)
    if nodes is not None and ranks % nodes == 0:
        return nodes, ranks // nodes
    per_node = gpus or next(size for size in range(max(largest, 1), 0, -1) if ranks % size == 0)
    return max(1, ranks // per_node), per_node


def _colocated_peak(recipe: Recipe, sizing: Sizing, room: Room) -> float:
    """Return the peak bytes on a GPU that all roles share."""
    counts = {**recipe.given, **sizing.flags}
    ranks = {role: counts["actor.num_nodes"] * counts["actor.num_gpus_per_node"] for role in recipe.roles}
    found = footprints(with_mode(recipe, sizing.flags), ranks, room.gpu_memory or 0.0)
    return together(list(found.values())) if found else 0.0
