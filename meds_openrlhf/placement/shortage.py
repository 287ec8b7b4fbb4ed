"""Describes in one line what a cluster lacks for a run: the need per node, and the nodes that are too small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node, describe_nodes, plural
from meds_openrlhf.placement.packing import Demand, pack


class Shortage(ConfigError):
    """The cluster is too small for the run, or too much of it is in use.

    ``text`` describes what is lacking, ``advice`` what the user can do.
    """

    def __init__(self, cluster: str, text: str, advice: str) -> None:
        self.cluster = cluster
        self.text = text
        self.advice = advice
        super().__init__("cluster", cluster, f"does not fit the run, which {text}; {advice}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return ConfigError, (self.field, self.value, self.hint)


@dataclass(frozen=True)
class Need:
    """Blocks of GPUs for one or more roles."""

    owner: str
    demand: Demand

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return self.demand.count * self.demand.size


def shortage(needs: Sequence[Need], nodes: Sequence[Node], shards: int, controllers: int, advice: str) -> Shortage:
    """Return the error for a run that does not fit ``nodes``; ``advice`` says what to do."""
    cluster = describe_nodes(list(nodes))
    largest = max((int(node.gpus) for node in nodes), default=0)
    for need in needs:
        if need.demand.size > largest:
            text = f"needs {plural(need.demand.size, 'GPU')} on one node for the {need.owner}"
            return Shortage(cluster, f"{text}; the largest has {plural(largest, 'GPU')}", advice)
    gpus, present = sum(need.gpus for need in needs), sum(int(node.gpus) for node in nodes)
    if gpus > present and not all(need.demand.size == largest > 1 for need in needs):
        by_owner = ", ".join(f"{need.owner} {need.gpus}" for need in needs)
        return Shortage(cluster, f"needs {plural(gpus, 'GPU')} ({by_owner}); the cluster has {present}", advice)
    wanted = _ideal_nodes(needs, largest, shards, controllers)
    text = f"needs {plural(gpus, 'GPU')} and {plural(gpus + shards + controllers, 'CPU')}"
    if len(set(wanted)) <= 2:
        text = f"needs {_describe(wanted)}"
    return Shortage(cluster, f"{text}; {_lacking(wanted, nodes)}", advice)


def _ideal_nodes(needs: Sequence[Need], size: int, shards: int, controllers: int) -> list[tuple[int, int]]:
    """Return GPUs and CPUs per node on sufficiently many empty nodes with ``size`` GPUs, fullest node first."""
    count = max(1, sum(need.demand.count for need in needs))
    packed = pack([size] * count, [need.demand for need in needs]) or []
    gpus = [sum(blocks[i] * need.demand.size for blocks, need in zip(packed, needs)) for i in range(count)]
    used = sorted((number for number in gpus if number), reverse=True) or [0]
    extra = ceil((shards + controllers) / len(used))
    return [(number, number + extra) for number in used]


def _describe(wanted: list[tuple[int, int]]) -> str:
    parts = []
    for (gpus, cpus), count in Counter(wanted).items():
        each = " each" if count > 1 else ""
        parts.append(f"{plural(count, 'node')} with {plural(gpus, 'GPU')} and {plural(cpus, 'CPU')}{each}")
    return " and ".join(parts)


def _lacking(wanted: list[tuple[int, int]], nodes: Sequence[Node]) -> str:
    """Describe the nodes that are too small; matches the largest need with the emptiest node."""
    ranked = sorted(nodes, key=lambda node: -node.room)
    short = [
        f"{_named(node)} has {_free(node, gpus, cpus)}"
        for (gpus, cpus), node in zip(wanted, ranked)
        if node.free_gpus < gpus or node.free_cpus < cpus
    ]
    present = sum(1 for node in nodes if node.gpus >= 1)
    if present < len(wanted):
        return f"there {'is' if present == 1 else 'are'} {plural(present, 'node') if present else 'none'}"
    shown = short[:3] + ([f"{len(short) - 3} more fall short"] if len(short) > 3 else [])
    return "; ".join(shown) or f"the cluster has {describe_nodes(list(nodes))}"


def _named(node: Node) -> str:
    return node.name if node.name.startswith("node ") else f"node {node.name}"


def _free(node: Node, gpus: int, cpus: int) -> str:
    lacking = []
    if node.free_gpus < gpus:
        lacking.append(f"{plural(node.free_gpus, 'GPU')}")
    if node.free_cpus < cpus:
        lacking.append(f"{plural(node.free_cpus, 'CPU')}")
    return f"{' and '.join(lacking)} free"
