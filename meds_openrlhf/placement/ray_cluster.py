"""The inventory of the Ray cluster that this process is connected to."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import ray
from ray._private.state import available_resources_per_node

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import GPU_MEMORY_GB, Node

ACCELERATOR = "accelerator_type:"


def inventory() -> list[Node]:
    """Return the cluster's alive nodes with their total and free resources, sorted by address."""
    alive = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: (_address(node), node["NodeID"]))
    free = available_resources_per_node()
    shared = {address for address, count in Counter(map(_address, alive)).items() if count > 1}
    # A node that has just joined has not reported free resources yet; all of them are free.
    return [_node(node, free.get(node["NodeID"], node["Resources"]), _address(node) in shared) for node in alive]


def inventory_of_running_cluster() -> list[Node]:
    """Return the inventory of the cluster at RAY_ADDRESS or on this machine, without starting a cluster.

    Raises ConfigError if no cluster answers.
    """
    address = os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        hint = "names no Ray cluster that answers, nor does one run here; name an imagined one with --cluster, e.g. 4x8"
        raise ConfigError("RAY_ADDRESS", address, hint) from error
    try:
        return inventory()
    finally:
        ray.shutdown()


def _address(node: dict[str, Any]) -> str:
    return str(node["NodeManagerAddress"])


def _node(node: dict[str, Any], free: dict[str, float], shares_address: bool) -> Node:
    total = node["Resources"]
    # Several nodes on one machine have the same address; the beginning of Ray's node id distinguishes them.
    name = f"{_address(node)}#{node['NodeID'][:6]}" if shares_address else _address(node)
    types = [key.removeprefix(ACCELERATOR) for key in total if key.startswith(ACCELERATOR)]
    known = [GPU_MEMORY_GB[name] for name in types if name in GPU_MEMORY_GB]
    return Node(
        name=name,
        gpus=total.get("GPU", 0.0),
        cpus=total.get("CPU", 0.0),
        free_gpus=free.get("GPU", 0.0),
        free_cpus=free.get("CPU", 0.0),
        gpu_memory_gb=min(known) if known else None,
        id=node["NodeID"],
    )
