"""Takes the inventory of a Ray cluster's nodes."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from operator import itemgetter
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from meds_openrlhf.placement.inventory import GB, GPU_MEMORY_GB, Node
from meds_openrlhf.runtime.devices import smallest_card

ACCELERATOR = "accelerator_type:"
CARDS_SECONDS = 60.0


def inventory() -> list[Node]:
    """Return the cluster's alive nodes with their total and free resources, sorted by address."""
    nodes, free = named_nodes(), available_resources_per_node()
    cards = _smallest_cards(tuple(node["NodeID"] for node in nodes.values() if accelerators(node)))
    # A node that has just joined has not reported free resources yet; all of them are free.
    return [
        _node(name, node, free.get(node["NodeID"], node["Resources"]), cards.get(node["NodeID"]))
        for name, node in nodes.items()
    ]


def named_nodes() -> dict[str, dict[str, Any]]:
    """Return what Ray says of each alive node, by its address.

    Several nodes on one machine have the same address; the beginning of Ray's node id distinguishes them.
    """
    alive = sorted((node for node in ray.nodes() if node["Alive"]), key=itemgetter("NodeManagerAddress", "NodeID"))
    names = [str(node["NodeManagerAddress"]) for node in alive]
    return {name + f"#{node['NodeID'][:6]}" * (names.count(name) > 1): node for name, node in zip(names, alive)}


def accelerators(node: dict[str, Any]) -> list[str]:
    """Return the types of a node's GPUs as Ray names them: A100 for those of 40 GB and of 80."""
    return [key.removeprefix(ACCELERATOR) for key in node["Resources"] if key.startswith(ACCELERATOR)]


@cache  # the inventory is taken again and again while a run waits for room
def _smallest_cards(nodes: tuple[str, ...]) -> dict[str, float | None]:
    """Ask every node for its smallest GPU; those that do not answer in time are left out."""
    ask, pinned = ray.remote(num_cpus=0)(smallest_card), NodeAffinitySchedulingStrategy
    asked = {ask.options(scheduling_strategy=pinned(node, soft=False)).remote(): node for node in nodes}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=CARDS_SECONDS) if asked else ([], [])
    cards: dict[str, float | None] = {}
    for answer in answered:
        with suppress(ray.exceptions.RayError):  # a node that died meanwhile
            cards[asked[answer]] = ray.get(answer)
    return cards


def _node(name: str, node: dict[str, Any], free: dict[str, float], card: float | None) -> Node:
    total = node["Resources"]
    known = [GPU_MEMORY_GB[kind] for kind in accelerators(node) if kind in GPU_MEMORY_GB]
    return Node(
        name=name,
        gpus=total.get("GPU", 0.0),
        cpus=total.get("CPU", 0.0),
        free_gpus=free.get("GPU", 0.0),
        free_cpus=free.get("CPU", 0.0),
        gpu_memory_gb=card or min(known, default=None),
        memory_gb=total["memory"] / GB if "memory" in total else None,
        id=node["NodeID"],
        is_drivers=node["NodeID"] == ray.get_runtime_context().get_node_id(),
    )
