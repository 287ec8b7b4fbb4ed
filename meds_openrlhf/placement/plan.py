"""Plans the placement of all roles before anything starts. Pure: planning needs neither Ray nor a cluster.

split                                colocate
GPU 0..k    vLLM engines             GPU 0..n    vLLM engines, policy and other models together
GPU k+1..n  policy
CPUs        memory shards            CPUs        memory shards

A role requests equal blocks of GPUs: the engines one block per tensor-parallel group, a DeepSpeed model one block of
``num_gpus_per_node`` per node. A block never spans two nodes. Roles that share GPUs form a group; its bundles are
numbered node by node, and OpenRLHF's ranks and engines use them in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node, Shortage, describe_nodes, names_of, smallest_gpu_memory
from meds_openrlhf.placement.roles import RoleRequest, grouped
from meds_openrlhf.terminal import counted

Blocks = tuple[int, int]  # their number, and the GPUs of each, with a CPU for every GPU; a block stays on one node


@dataclass(frozen=True)
class Group:
    """Roles on the same GPUs. ``nodes[i]`` is the node of bundle i; the bundles of a node are adjacent."""

    members: tuple[RoleRequest, ...]
    nodes: tuple[Node, ...]

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles' names; the owner of the GPUs comes first."""
        return tuple(member.role for member in self.members)

    def __str__(self) -> str:
        return f"{' + '.join(self.roles)}: {counted(len(self.nodes), 'GPU')} on {names_of(self.nodes)}"


@dataclass(frozen=True)
class Plan:
    """The assignment of roles to GPUs, the node of each of the memory's shards, and the controllers' CPUs."""

    groups: tuple[Group, ...]
    shards: tuple[Node, ...]
    controller_cpus: int
    nodes: tuple[Node, ...]
    waits: bool = False  # whether it is for whole nodes, parts of which others use

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return sum(len(group.nodes) for group in self.groups)

    @property
    def cpus(self) -> int:
        """The total number of CPUs."""
        return self.gpus + len(self.shards) + self.controller_cpus

    @property
    def gpu_memory_gb(self) -> float | None:
        """The memory of the smallest GPU in GB, which every rank has to fit; None if a node's is unknown."""
        return smallest_gpu_memory([node for group in self.groups for node in group.nodes])

    def __str__(self) -> str:
        memory = [f"memory: {counted(len(self.shards), 'shard')} on CPUs"] if self.shards else []
        return "; ".join([*map(str, self.groups), *memory])


def make_plan(requests: Sequence[RoleRequest], nodes: Sequence[Node], memory_shards: int, controller_cpus: int) -> Plan:
    """Assign every role's GPUs and the memory's CPUs to nodes; the memory is on the driver's node, beside its files.

    If what is free has no room, the plan is for the whole nodes, and a run waits for what others use there. Raises
    ConfigError if roles that share GPUs request different numbers of them, and its subclass Shortage if even the whole
    nodes have no room.
    """
    groups = _groups(requests)
    # Blocks that contain whole blocks of every member, so that no block is split over nodes.
    sizes = [lcm(*(member.block_gpus for member in group)) for group in groups]
    demands = [(group[0].gpus // size, size) for group, size in zip(groups, sizes)]
    cpus = sum(group[0].gpus for group in groups) + memory_shards + controller_cpus
    free = _packed(demands, nodes, memory_shards, cpus)
    packed = free or _packed(demands, nodes, memory_shards, cpus, whole=True)
    home = drivers_node(nodes)
    if packed is None:
        names = [" + ".join(request.role for request in group) for group in groups]
        needs = ", ".join(f"{_worded(*blocks)} for {name}" for name, blocks in zip(names, demands))
        beside = f" ({memory_shards} of them on {home.name} for the memory)" if home and memory_shards else ""
        text = f"{needs} and {counted(cpus, 'CPU')}{beside}; free: {describe_nodes(nodes)}"
        gpus_fit = pack([node.room(whole=True) for node in nodes], demands) is not None
        largest = max(requests, key=lambda request: request.gpus)
        if gpus_fit and memory_shards > 1:
            advice = "Lower meds.memory.shards"
        elif largest.gpus == 1 and len(groups) > 1:
            advice = "Share GPUs (meds.placement.mode=colocate)"
        else:
            advice = f"Lower {largest.flag}"
        raise Shortage(text, f"{advice} or add nodes.")
    placed = []
    for group, size, blocks in zip(groups, sizes, packed):
        bundles = (node for node, count in zip(nodes, blocks) for _ in range(count * size))
        placed.append(Group(tuple(group), tuple(bundles)))
    return Plan(
        tuple(placed), (home,) * memory_shards if home else (), controller_cpus, tuple(nodes), waits=free is None
    )


def _worded(count: int, size: int) -> str:
    return counted(count, "GPU") if size == 1 else f"{count} x {size} GPUs on one node"


def _packed(
    demands: Sequence[Blocks], nodes: Sequence[Node], shards: int, cpus: int, whole: bool = False
) -> list[list[int]] | None:
    """Return the blocks of each demand on each node, beside the memory's shards; None if they do not fit."""
    home = drivers_node(nodes)
    has_memory = home is None or home.whole_cpus(whole) >= shards
    if not has_memory or sum(node.whole_cpus(whole) for node in nodes) < cpus:
        return None
    return pack(rooms(nodes, shards, whole), demands)


def rooms(nodes: Sequence[Node], shards: int, whole: bool = False) -> list[int]:
    """Return each node's room in bundles, with the CPUs of the memory's shards taken from the driver's node."""
    home = drivers_node(nodes)
    return [node.room(whole, beside_cpus=shards if node is home else 0) for node in nodes]


def drivers_node(nodes: Sequence[Node]) -> Node | None:
    """Return the node of the run's driver, the first one if none is marked; None without nodes."""
    return next((node for node in nodes if node.is_drivers), nodes[0] if nodes else None)


def _groups(requests: Sequence[RoleRequest]) -> list[list[RoleRequest]]:
    """Group requests that share GPUs. Raises ConfigError if they request different numbers of GPUs."""
    by_role = {request.role: request for request in requests}
    hosts = {request.role: request.shares_with for request in requests if request.shares_with is not None}
    for guest, owner in ((by_role[role], by_role[host]) for role, host in hosts.items()):
        if guest.gpus != owner.gpus:
            hint = (
                f"makes {counted(guest.gpus, 'GPU')} for {guest.role}, which share those of {owner.role}, but these "
                f"are {owner.gpus}. Make the numbers equal, or set meds.placement.mode to split."
            )
            raise ConfigError(guest.flag, guest.blocks if guest.role == "engines" else guest.block_gpus, hint)
    return [[by_role[role] for role in roles] for roles in grouped(by_role, hosts)]


def pack(room: Sequence[int], demands: Sequence[Blocks]) -> list[list[int]] | None:
    """Return how many blocks of each demand go to each node; ``room`` is in bundles per node. None if they do not fit.

    Each demand fills the roomiest nodes, and its rest goes to the tightest node that holds it. If every size divides
    the next larger one (8, 4, 1), this finds a packing whenever there is one. Other sizes, such as 6 beside 4, may be
    refused although another order would fit.
    """
    left = list(room)
    packed = [[0] * len(left) for _ in demands]
    for index in sorted(range(len(demands)), key=lambda index: -demands[index][1]):
        missing, size = demands[index]
        if sum(free // size for free in left) < missing:
            return None
        while missing:
            slots = [free // size for free in left]
            enough = [node for node, count in enumerate(slots) if count >= missing]
            _, node = min((left[node] if enough else -slots[node], node) for node in enough or range(len(left)))
            placed = min(missing, slots[node])
            packed[index][node] += placed
            left[node] -= placed * size
            missing -= placed
    return packed
