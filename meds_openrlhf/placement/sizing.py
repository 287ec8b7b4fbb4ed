"""Fits the counts that a run's configuration omits to the cluster. Pure.

Every model that DeepSpeed runs gets as many ranks as its GPUs and OpenRLHF's batches allow, on as few nodes as
possible. In mode colocate these are all GPUs, and engines use the same. In mode split they are half of the GPUs,
divided among the models that have their own, and engines get the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.modes import decided_mode, mode_flags
from meds_openrlhf.placement.packing import Demand, pack
from meds_openrlhf.placement.recipe import Recipe

SECTIONS = {"policy": "actor", "reference": "ref", "critic": "critic", "reward": "reward"}
ENGINES, TENSOR_PARALLEL = "vllm.num_engines", "vllm.tensor_parallel_size"


@dataclass(frozen=True)
class Sizing:
    """A run's mode, the reason for it, and the flags added to those that the user set."""

    mode: str
    why: str
    flags: dict[str, Any]


@dataclass(frozen=True)
class Room:
    """Free bundles per node, and how many of them are usable if CPUs stay free for controllers."""

    nodes: tuple[int, ...]
    usable: int

    @staticmethod
    def of(nodes: Sequence[Node], reserved_cpus: int) -> Room:
        """Return the room of a cluster, with ``reserved_cpus`` for controllers."""
        rooms = tuple(node.room for node in nodes)
        cpus = sum(node.room_for_cpus for node in nodes) - reserved_cpus
        return Room(rooms, max(0, min(sum(rooms), cpus)))


def size(recipe: Recipe, mode: str, room: Room, saved_ranks: Mapping[str, int] | None = None) -> Sizing:
    """Choose the mode and the counts of a run on a cluster with ``room``.

    ``saved_ranks`` are the ranks of the roles in the checkpoint to resume, which stay unchanged. Raises ConfigError for
    batches that cannot be split over any number of ranks, and for a tensor parallel size that vLLM cannot have.
    """
    decided, why = decided_mode(mode, recipe.given)
    _require_splittable_heads(recipe, max(room.nodes, default=0))
    if decided == "flags":
        return Sizing(decided, why, {})
    if not recipe.even_counts():
        hint = f"cannot be split over any number of policy ranks ({recipe.batches})"
        raise ConfigError("train.batch_size", recipe.train_batch, hint)
    counts = _counts(recipe, room, saved_ranks or {}, shared=decided == "colocate")
    missing = {flag: count for flag, count in counts.items() if recipe.given.get(flag) is None}
    return Sizing(decided, why, {**mode_flags(mode, recipe.given), **missing})


def _counts(recipe: Recipe, room: Room, saved: Mapping[str, int], shared: bool) -> dict[str, int]:
    """Return all counts; those that the user set are among them or are replaced by the caller."""
    given = recipe.given
    engines, width = given.get(ENGINES), given.get(TENSOR_PARALLEL) or 1
    engine_gpus = None if engines is None else engines * width
    owners = [role for role in recipe.roles if role in SECTIONS and role not in recipe.sharing]
    budget = room.usable if shared else room.usable // 2 if engine_gpus is None else room.usable - engine_gpus
    counts: dict[str, int] = {}
    demands: list[Demand] = []
    left = room.nodes
    for owner in owners:
        fixed = saved.get(owner) or (engine_gpus if shared else None)
        nodes, gpus = _layout(recipe, owner, left, max(1, budget // len(owners)), fixed, width if shared else 1)
        for role in (owner, *(guest for guest, host in recipe.sharing.items() if host == owner and guest in SECTIONS)):
            counts |= _in_blocks(given, SECTIONS[role], nodes, gpus)
        demands.append(Demand(nodes, gpus))
        left = _left(room.nodes, demands)
    used = sum(demand.count * demand.size for demand in demands)
    fitting = used if shared else min(sum(free // width * width for free in left), room.usable - used)
    return {**counts, ENGINES: max(1, fitting // width), TENSOR_PARALLEL: width}


def _layout(
    recipe: Recipe, role: str, room: Sequence[int], most: int, fixed: int | None, multiple: int
) -> tuple[int, int]:
    """Return blocks and GPUs per block of a DeepSpeed model with up to ``most`` ranks, or ``fixed`` if given.

    If nothing fits, returns a small request, for which planning then reports the shortage.
    """
    section, largest = SECTIONS[role], max(max(room, default=0), 1)
    blocks, gpus = recipe.given.get(f"{section}.num_nodes"), recipe.given.get(f"{section}.num_gpus_per_node")
    if blocks is not None and gpus is not None:
        return blocks, gpus
    for ranks in [fixed] if fixed else [count for count in reversed(recipe.even_counts()) if count <= most]:
        for size in range(largest, 0, -1):
            fits = fixed or sum(free // size for free in room) >= ranks // size
            as_given = blocks in (None, ranks // size) and gpus in (None, size)
            if ranks % size == 0 and size % multiple == 0 and fits and as_given:
                return ranks // size, size
    return blocks or 1, gpus or multiple


def _in_blocks(given: Mapping[str, Any], section: str, nodes: int, gpus: int) -> dict[str, int]:
    """Return counts of a role with ``nodes * gpus`` ranks, in other blocks if the user gave one of its counts."""
    per_node, own = f"{section}.num_gpus_per_node", f"{section}.num_nodes"
    ranks = nodes * gpus
    return {own: max(1, ranks // (given.get(per_node) or gpus)), per_node: max(1, ranks // (given.get(own) or nodes))}


def _left(room: Sequence[int], demands: Sequence[Demand]) -> tuple[int, ...]:
    """Return the room that is left after ``demands``; all of it if they do not fit."""
    packed = pack(room, demands) or []
    taken = [sum(blocks[i] * demand.size for blocks, demand in zip(packed, demands)) for i in range(len(room))]
    return tuple(free - gpus for free, gpus in zip(room, taken))


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
    flags = [f"{SECTIONS[role]}.num_gpus_per_node", f"{SECTIONS[role]}.num_nodes"]
    others = [ENGINES, TENSOR_PARALLEL, "actor.num_gpus_per_node", "actor.num_nodes"]
    found = [flag for flag in flags + others * bool(decided) if given.get(flag) is not None]
    return found[0] if found else flags[0]


def listed(counts: Sequence[int]) -> str:
    """Format counts as in ``1, 2, 4, 8, 16, … 256``."""
    if len(counts) <= 6:
        return ", ".join(map(str, counts))
    return f"{', '.join(map(str, counts[:5]))}, … {counts[-1]}"
