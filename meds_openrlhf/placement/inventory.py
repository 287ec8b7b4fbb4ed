"""A cluster's nodes with their GPUs, CPUs and GPU memory: imagined ones, and what they are called in messages.

`ray_cluster` reads the nodes from Ray; here, nothing needs it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.terminal import counted

GB = 2**30
# GPU memory in GB by Ray's `accelerator_type:*` resource, where the driver does not answer.
GPU_MEMORY_GB = {"B300": 288.0, "B200": 180.0, "H200": 140.0, "H100": 79.0, "H20": 96.0, "A100": 80.0}
GPU_MEMORY_GB |= {"A100-80G": 80.0, "A100-40G": 40.0, "L40S": 48.0, "A10G": 24.0, "L4": 24.0, "V100": 32.0, "T4": 16.0}
CPUS_PER_GPU = 16  # of an imagined node; typical GPU servers have 12 to 28
MOST_KINDS = 4  # of nodes in a message


@dataclass(frozen=True)
class Node:
    """A machine of the cluster. ``name`` is shown to the user; ``id`` is Ray's, empty for an imagined node."""

    name: str
    gpus: float
    cpus: float
    free_gpus: float
    free_cpus: float
    gpu_memory_gb: float | None = None
    memory_gb: float | None = None  # of the node, without Ray's object store
    id: str = ""
    is_drivers: bool = False  # whether the run's driver is there, and with it the memory

    def room(self, whole: bool = False, beside_cpus: int = 0) -> int:
        """Return the number of free bundles of one GPU and one CPU beside ``beside_cpus``; if ``whole``, of all."""
        gpus, cpus = (self.gpus, self.cpus) if whole else (self.free_gpus, self.free_cpus)
        return max(0, min(math.floor(gpus), math.floor(cpus) - beside_cpus))

    def whole_cpus(self, whole: bool = False) -> int:
        """Return the number of free whole CPUs; if ``whole``, of all."""
        return math.floor(self.cpus if whole else self.free_cpus)


def imagined_cluster(shape: str, gpu_memory_gb: float | None = None, cpus: int | None = None) -> list[Node]:
    """Return equal nodes, four with eight GPUs each for ``"4x8"``; ``cpus`` is per node, by default 16 per GPU."""
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,2})", shape)
    if not found:
        raise ConfigError("--cluster", shape, "must be nodes x GPUs per node, e.g. 4x8.")
    if gpu_memory_gb is not None and not 0 < gpu_memory_gb < math.inf:
        raise ConfigError("--gpu-memory", gpu_memory_gb, "must be above 0. Give the memory of one GPU in GB, e.g. 80.")
    if cpus is not None and cpus < 1:
        raise ConfigError("--cpus", cpus, "must be at least 1. Give the CPUs of one node, e.g. 128.")
    nodes, gpus = int(found[1]), int(found[2])
    node = Node("", gpus, cpus or CPUS_PER_GPU * gpus, gpus, cpus or CPUS_PER_GPU * gpus, gpu_memory_gb)
    return [replace(node, name=f"node {index}", is_drivers=index == 0) for index in range(nodes)]


def smallest_gpu_memory(nodes: Sequence[Node]) -> float | None:
    """Return the memory of the smallest GPU in GB, which every rank has to fit; None if a node's is unknown."""
    known = [node.gpu_memory_gb for node in nodes if node.gpus >= 1]
    return None if not known or None in known else min(memory for memory in known if memory is not None)


def describe_nodes(nodes: Sequence[Node]) -> str:
    """Describe free resources, most GPUs first: ``3 nodes with 8 GPUs and 128 CPUs each, 10.0.0.7 with 6 of 8 …``."""
    kinds: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: (-node.free_gpus, -node.free_cpus)):
        amounts = ((node.free_gpus, node.gpus, "GPU"), (node.free_cpus, node.cpus, "CPU"))
        parts = [("" if free == total else f"{free:g} of ") + counted(total, noun) for free, total, noun in amounts]
        kinds.setdefault(" and ".join(parts), []).append(node.name)
    described = [
        f"{names[0]} with {has}" if len(names) == 1 else f"{len(names)} nodes with {has} each"
        for has, names in kinds.items()
    ]
    more = [f"and {len(described) - MOST_KINDS} other kinds with less"] if len(described) > MOST_KINDS else []
    return ", ".join(described[:MOST_KINDS] + more) or "no nodes"


def names_of(nodes: Sequence[Node]) -> str:
    """Return the names of one or two nodes; of more, the first, the last and their number."""
    names = list(dict.fromkeys(node.name for node in nodes))
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]} ({len(names)})"


class Shortage(ConfigError):
    """The cluster is too small; ``text`` says what is needed and what is there, ``advice`` what to do."""

    def __init__(self, text: str, advice: str) -> None:
        self.text, self.advice = text, advice
        super().__init__("cluster", None, f"has no room for {text}. {advice}")
