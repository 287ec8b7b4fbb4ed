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
from meds_openrlhf.placement.inventory import Node, plural
from meds_openrlhf.placement.packing import Demand, pack
from meds_openrlhf.placement.shortage import Need, Shortage, describe_shortage, some_of

# The flag that a user lowers to make a role smaller.
ROLE_FLAGS = {
    "policy": "actor.num_gpus_per_node",
    "engines": "vllm.num_engines",
    "reference": "ref.num_gpus_per_node",
    "critic": "critic.num_gpus_per_node",
    "reward": "reward.num_gpus_per_node",
    "memory": "meds.memory.shards",
}


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
    def need(self) -> Need:
        """The group's GPUs on its nodes, for a message."""
        names = list(dict.fromkeys(node.name for node in self.nodes))
        return Need(f"{' + '.join(self.roles)} on {some_of(names)}", Demand(len(self.nodes), 1))

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The bundles that Ray reserves: one GPU and one CPU each."""
        return [{"GPU": 1.0, "CPU": 1.0} for _ in self.nodes]

    def __str__(self) -> str:
        nodes = len(dict.fromkeys(self.nodes))
        return f"{' + '.join(self.roles)}: {plural(len(self.nodes), 'GPU')} on {plural(nodes, 'node')}"


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
    members = sharing_roles(requests)
    demands = [_demand(group) for group in members]
    home = drivers_node(nodes)
    if home is not None and home.room_for_cpus < memory_shards:
        text = f"needs {plural(memory_shards, 'CPU')} for the memory on the driver's node, {home.name}; free are"
        raise Shortage(plural(len(nodes), "node"), f"{text} {home.room_for_cpus}", f"lower {ROLE_FLAGS['memory']}")
    packed = pack([node.room for node in beside_memory(nodes, memory_shards)], demands)
    left = sum(node.room_for_cpus for node in nodes) - sum(demand.count * demand.size for demand in demands)
    if packed is None or left < memory_shards + controller_cpus:
        needs = [Need(" + ".join(request.role for request in group), d) for group, d in zip(members, demands)]
        cpus = sum(need.gpus for need in needs) + memory_shards + controller_cpus
        largest = max(requests, key=lambda request: request.gpus).role
        gpus_fit = pack([node.room for node in nodes], demands) is not None
        only_cpus = gpus_fit and memory_shards > 1
        advice = f"lower {ROLE_FLAGS['memory' if only_cpus else largest]}"
        if not only_cpus and len(needs) > 1 and all(need.gpus == 1 for need in needs) and any(n.gpus for n in nodes):
            advice = "set meds.placement.mode to colocate (not with train.async_enable)"
        text = describe_shortage(needs, cpus, nodes)
        raise Shortage(plural(len(nodes), "node"), text, f"{advice} or add nodes")
    groups = tuple(
        Group(tuple(group), tuple(node for node, count in zip(nodes, blocks) for _ in range(count * demand.size)))
        for group, demand, blocks in zip(members, demands, packed)
    )
    return Plan(groups, (home,) * memory_shards if home else (), controller_cpus, tuple(nodes))


def drivers_node(nodes: Sequence[Node]) -> Node | None:
    """Return the node of the run's driver, the first one if none is marked; None without nodes."""
    return next((node for node in nodes if node.is_drivers), nodes[0] if nodes else None)


def beside_memory(nodes: Sequence[Node], shards: int) -> list[Node]:
    """Return the nodes with the CPUs of the memory's shards taken from the driver's."""
    home = drivers_node(nodes)
    return [replace(node, free_cpus=max(0, node.free_cpus - shards)) if node is home else node for node in nodes]


def sharing_roles(requests: Sequence[RoleRequest]) -> list[list[RoleRequest]]:
    """Group requests that share GPUs. Raises ConfigError if they request different numbers of GPUs."""
    groups = []
    for owner in requests:
        if owner.shares_with is not None or owner.gpus == 0:
            continue
        guests = [request for request in requests if request.shares_with == owner.role]
        for guest in guests:
            if guest.gpus != owner.gpus:
                raise ConfigError(
                    ROLE_FLAGS[guest.role],
                    guest.blocks if guest.role == "engines" else guest.block_gpus,
                    f"makes {plural(guest.gpus, 'GPU')} in all, which do not fit the {owner.gpus} of the {owner.role} "
                    "that it shares them with; make them equal, or set meds.placement.mode to split",
                )
        groups.append([owner, *guests])
    return groups


def _demand(members: list[RoleRequest]) -> Demand:
    """Return blocks that contain whole blocks of every member, so that no block is split over nodes."""
    size = lcm(*(member.block_gpus for member in members))
    return Demand(members[0].gpus // size, size)
