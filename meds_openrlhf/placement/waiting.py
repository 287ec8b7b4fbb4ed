"""Describes what a run still waits for at its timeout: which ranks, on which node, and the free resources. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meds_openrlhf.placement.inventory import Node, plural
from meds_openrlhf.placement.plan import Group, Plan

SHOWN = 4  # number of nodes in a message


@dataclass(frozen=True)
class Wanted:
    """Bundles of the same owners on the same node (None for CPUs on any node), with their resources."""

    owners: str
    node: Node | None
    gpus: int
    cpus: int


def wanted_by(group: Group) -> list[Wanted]:
    """Return the bundles of a group of GPUs, node by node."""
    found = []
    for node in dict.fromkeys(group.nodes):
        first = group.nodes.index(node)
        count = group.nodes.count(node)
        found.append(Wanted(_owners(group, first, first + count - 1), node, count, count))
    return found


def wanted_by_memory(plan: Plan) -> list[Wanted]:
    """Return the bundles of the memory's shards: CPUs on any node."""
    return [Wanted(f"memory {_numbered('shard', 0, len(plan.shards) - 1)}", None, 0, len(plan.shards))]


def describe_waiting(wanted: Sequence[Wanted], nodes: Sequence[Node]) -> str:
    """Describe in one line which wanted resources are not free on ``nodes``, given in their current state."""
    now = {node.id or node.name: node for node in nodes}
    lacking = []
    for bundle in wanted:
        if bundle.node is None:
            lacking.append(_anywhere(bundle, nodes))
            continue
        node = now.get(bundle.node.id or bundle.node.name)
        if node is None:
            lacking.append(f"{bundle.owners}: {_need(bundle)} on {bundle.node.name}, which has left the cluster")
        elif node.free_gpus < bundle.gpus or node.free_cpus < bundle.cpus:
            lacking.append(f"{bundle.owners}: {_need(bundle)} on {node.name}, where {_free(node)} are free")
    if lacking:
        return f"still waiting for room for {'; '.join(lacking)}"
    return f"Ray has not placed {', '.join(bundle.owners for bundle in wanted)} yet, though there is room"


def _anywhere(bundle: Wanted, nodes: Sequence[Node]) -> str:
    ranked = sorted(nodes, key=lambda node: -node.room_for_cpus)
    free = [f"{node.name} {_free(node)}" for node in ranked[:SHOWN]]
    if len(ranked) > SHOWN:
        free.append(f"{plural(len(ranked) - SHOWN, 'node')} less")
    return f"{bundle.owners}: {_need(bundle)}, where free are: {', '.join(free) or 'no nodes'}"


def _need(bundle: Wanted) -> str:
    parts = ([plural(bundle.gpus, "GPU")] if bundle.gpus else []) + [plural(bundle.cpus, "CPU")]
    return " and ".join(parts)


def _free(node: Node) -> str:
    gpus = [plural(node.free_gpus, "GPU")] if node.gpus else []
    return " and ".join([*gpus, plural(node.free_cpus, "CPU")])


def _owners(group: Group, first: int, last: int) -> str:
    parts = []
    for member in group.members:
        if member.role == "engines":
            parts.append(_numbered("engine", first // member.block_gpus, last // member.block_gpus))
        else:
            parts.append(f"{member.role} {_numbered('rank', first, last)}")
    return " + ".join(parts)


def _numbered(noun: str, first: int, last: int) -> str:
    """Format a range of numbers: ``rank 3``, ``ranks 3-7``."""
    return f"{noun} {first}" if first == last else f"{noun}s {first}-{last}"
