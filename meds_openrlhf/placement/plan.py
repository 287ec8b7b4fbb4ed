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
from dataclasses import dataclass, replace
from math import lcm

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node, describe_nodes, names_of, plural
from meds_openrlhf.placement.modes import grouped
from meds_openrlhf.placement.packing import Demand, pack
from meds_openrlhf.placement.shortage import Shortage

# The sections of OpenRLHF's flags that count the ranks of the models that DeepSpeed runs.
SECTIONS = {"policy": "actor", "reference": "ref", "critic": "critic", "reward": "reward"}


@dataclass(frozen=True)
class RoleRequest:
    """A role's request for equal blocks of GPUs, each on one node, and the role whose GPUs it shares, if any."""

    role: str
    blocks: int
    block_gpus: int
    shares_with: str | None = None

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return self.blocks * self.block_gpus

    @property
    def flag(self) -> str:
        """The flag that a user lowers to make the role smaller."""
        return "vllm.num_engines" if self.role == "engines" else f"{SECTIONS[self.role]}.num_gpus_per_node"


@dataclass(frozen=True)
class Group:
    """Roles on the same GPUs. ``nodes[i]`` is the node of bundle i; the bundles of a node are adjacent."""

    members: tuple[RoleRequest, ...]
    nodes: tuple[Node, ...]

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles' names; the owner of the GPUs comes first."""
        return tuple(member.role for member in self.members)

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The bundles that Ray reserves: one GPU and one CPU each."""
        return [{"GPU": 1.0, "CPU": 1.0} for _ in self.nodes]

    def __str__(self) -> str:
        return f"{_names(self.members)}: {plural(len(self.nodes), 'GPU')} on {names_of(self.nodes)}"


@dataclass(frozen=True)
class Plan:
    """The assignment of roles to GPUs, the node of each of the memory's shards, and the controllers' CPUs."""

    groups: tuple[Group, ...]
    shards: tuple[Node, ...]
    controller_cpus: int
    nodes: tuple[Node, ...]

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return sum(len(group.nodes) for group in self.groups)

    @property
    def cpus(self) -> int:
        """The total number of CPUs."""
        return self.gpus + len(self.shards) + self.controller_cpus

    def request_of(self, role: str) -> RoleRequest | None:
        """Return a role's request, or None if the run has no such role."""
        return next((member for group in self.groups for member in group.members if member.role == role), None)

    def __str__(self) -> str:
        memory = [f"memory: {plural(len(self.shards), 'shard')} on CPUs"] if self.shards else []
        return "; ".join([*map(str, self.groups), *memory])


def make_plan(requests: Sequence[RoleRequest], nodes: Sequence[Node], memory_shards: int, controller_cpus: int) -> Plan:
    """Assign every role's GPUs and the memory's CPUs to nodes; the memory is on the driver's node, beside its files.

    Raises ConfigError if roles that share GPUs request different numbers of them, and its subclass Shortage if the
    nodes do not have enough room.
    """
    groups, home = _groups(requests), drivers_node(nodes)
    demands = [_demand(group) for group in groups]
    cpus = sum(demand.gpus for demand in demands) + memory_shards + controller_cpus
    packed = pack([node.room for node in beside_memory(nodes, memory_shards)], demands)
    has_memory = home is None or home.room_for_cpus >= memory_shards
    if packed is None or not has_memory or sum(node.room_for_cpus for node in nodes) < cpus:
        needs = ", ".join(f"{demand} for {_names(group)}" for group, demand in zip(groups, demands))
        beside = f" ({memory_shards} of them on {home.name} for the memory)" if home and memory_shards else ""
        text = f"{needs} and {plural(cpus, 'CPU')}{beside}; free are {describe_nodes(nodes)}"
        gpus_fit = pack([node.room for node in nodes], demands) is not None
        largest = max(requests, key=lambda request: request.gpus)
        smaller = "meds.memory.shards" if gpus_fit and memory_shards > 1 else largest.flag
        raise Shortage(text, f"Lower {smaller} or add nodes.")
    placed = tuple(
        Group(tuple(group), tuple(node for node, count in zip(nodes, blocks) for _ in range(count * demand.size)))
        for group, demand, blocks in zip(groups, demands, packed)
    )
    return Plan(placed, (home,) * memory_shards if home else (), controller_cpus, tuple(nodes))


def _names(group: Sequence[RoleRequest]) -> str:
    return " + ".join(request.role for request in group)


def drivers_node(nodes: Sequence[Node]) -> Node | None:
    """Return the node of the run's driver, the first one if none is marked; None without nodes."""
    return next((node for node in nodes if node.is_drivers), nodes[0] if nodes else None)


def beside_memory(nodes: Sequence[Node], shards: int) -> list[Node]:
    """Return the nodes with the CPUs of the memory's shards taken from the driver's."""
    home = drivers_node(nodes)
    return [replace(node, free_cpus=max(0, node.free_cpus - shards)) if node is home else node for node in nodes]


def _groups(requests: Sequence[RoleRequest]) -> list[list[RoleRequest]]:
    """Group requests that share GPUs. Raises ConfigError if they request different numbers of GPUs."""
    by_role = {request.role: request for request in requests}
    hosts = {request.role: request.shares_with for request in requests if request.shares_with is not None}
    groups = [[by_role[role] for role in roles] for roles in grouped(by_role, hosts)]
    for owner, *guests in groups:
        for guest in guests:
            if guest.gpus != owner.gpus:
                value = guest.blocks if guest.role == "engines" else guest.block_gpus
                hint = (
                    f"makes {plural(guest.gpus, 'GPU')} for {guest.role}, which share those of {owner.role}, but these "
                    f"are {owner.gpus}. Make the numbers equal, or set meds.placement.mode to split."
                )
                raise ConfigError(guest.flag, value, hint)
    return groups


def _demand(members: Sequence[RoleRequest]) -> Demand:
    """Return blocks that contain whole blocks of every member, so that no block is split over nodes."""
    size = lcm(*(member.block_gpus for member in members))
    return Demand(members[0].gpus // size, size)
