"""Where everything goes, decided before anything starts. Pure: neither Ray nor a cluster is needed to make a plan.

split                                colocated
GPU 0..k    vLLM engines             GPU 0..n    vLLM engines and policy (and reference …) together
GPU k+1..n  policy
CPUs        memory shards            CPUs        memory shards
"""

from __future__ import annotations

from dataclasses import dataclass

from meds_openrlhf.config.errors import ConfigError

# The flag that a user turns to make a role smaller.
ROLE_FLAGS = {
    "policy": "actor.num_gpus_per_node",
    "engines": "vllm.num_engines",
    "reference": "ref.num_gpus_per_node",
    "critic": "critic.num_gpus_per_node",
    "reward": "reward.num_gpus_per_node",
    "memory": "meds.memory.shards",
}


@dataclass(frozen=True)
class Node:
    """One machine of the cluster."""

    address: str
    gpus: float
    cpus: float


@dataclass(frozen=True)
class RoleRequest:
    """How many GPUs a role asks for, and the role whose GPUs it shares (None: its own)."""

    role: str
    gpus: int
    shares_with: str | None = None


@dataclass(frozen=True)
class BundleGroup:
    """One placement group: ``count`` equal bundles for ``roles``; ``strategy`` is Ray's (PACK, SPREAD)."""

    roles: tuple[str, ...]
    count: int
    gpus: int
    strategy: str

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What Ray reserves: one CPU per bundle, and one GPU unless the group lives on CPUs."""
        return [{"CPU": 1.0, **({"GPU": float(self.gpus)} if self.gpus else {})} for _ in range(self.count)]

    def __str__(self) -> str:
        unit = "GPU + 1 CPU" if self.gpus else "CPU"
        return f"{' + '.join(self.roles)}: {self.count} x 1 {unit}"


@dataclass(frozen=True)
class Plan:
    """The placement groups of a run, and the CPUs that its controllers take besides."""

    groups: tuple[BundleGroup, ...]
    controller_cpus: int

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(group.count * group.gpus for group in self.groups)

    @property
    def cpus(self) -> int:
        """CPUs in all."""
        return sum(group.count for group in self.groups) + self.controller_cpus

    def group_of(self, role: str) -> BundleGroup | None:
        """The group that a role lives in; None where the run has no such role."""
        return next((group for group in self.groups if role in group.roles), None)


def make_plan(requests: list[RoleRequest], memory_shards: int, controller_cpus: int) -> Plan:
    """One group per role, sharing roles together, and the memory spread over the nodes' CPUs.

    Raises ConfigError where roles that share GPUs ask for different numbers of them.
    """
    owners = [request for request in requests if request.shares_with is None and request.gpus > 0]
    groups = []
    for owner in owners:
        guests = [request for request in requests if request.shares_with == owner.role]
        for guest in guests:
            if guest.gpus != owner.gpus:
                raise ConfigError(
                    ROLE_FLAGS[guest.role],
                    guest.gpus,
                    f"GPUs in all do not fit the {owner.gpus} of the {owner.role}, which shares them; make them equal",
                )
        roles = (owner.role, *(guest.role for guest in guests))
        groups.append(BundleGroup(roles=roles, count=owner.gpus, gpus=1, strategy="PACK"))
    if memory_shards:
        groups.append(BundleGroup(roles=("memory",), count=memory_shards, gpus=0, strategy="SPREAD"))
    return Plan(groups=tuple(groups), controller_cpus=controller_cpus)


def require_fit(plan: Plan, nodes: list[Node]) -> None:
    """Raise ConfigError, naming the flag to lower and the exact shortage, where the cluster is too small."""
    gpus, cpus = sum(node.gpus for node in nodes), sum(node.cpus for node in nodes)
    if plan.gpus > gpus:
        largest = max((group for group in plan.groups if group.gpus), key=lambda group: group.count)
        wanted = "; ".join(str(group) for group in plan.groups if group.gpus)
        raise ConfigError(
            ROLE_FLAGS[largest.roles[0]],
            largest.count,
            f"is too many: the run needs {plan.gpus} GPUs ({wanted}) and the cluster has {gpus:g}; "
            "lower it or add nodes",
        )
    if plan.cpus > cpus:
        raise ConfigError(
            "cluster",
            f"{cpus:g} CPUs",
            f"are too few: the run needs {plan.cpus} ({'; '.join(map(str, plan.groups))}; "
            f"{plan.controller_cpus} for controllers); lower meds.memory.shards or add nodes",
        )
