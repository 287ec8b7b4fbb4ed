"""The nodes that a run is sized to: those that are stated, that Ray has now, or this machine's without a Ray."""

from __future__ import annotations

from collections.abc import Sequence

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.inventory import Node, imagined_cluster
from meds_openrlhf.placement.ray_cluster import inventory
from meds_openrlhf.runtime.devices import smallest_card
from meds_openrlhf.runtime.ray_connection import hint_without_answer, joined, resources_here, starts_ray_here
from meds_openrlhf.terminal import counted


def stated_nodes(cluster: str | None, on_cpu: bool) -> Sequence[Node] | None:
    """Return the nodes of ``cluster``, such as ``4x8``; None if it is not stated.

    Raises ConfigError for another form, and for more than this machine has if a Ray starts here, which nobody joins.
    """
    if cluster is None:
        return None
    nodes = imagined_cluster(cluster)
    if starts_ray_here(on_cpu) and sum(node.gpus for node in nodes) > (here := resources_here(on_cpu)[0]):
        hint = (
            f"no Ray cluster is running, and this machine has {counted(here, 'GPU')}. Set RAY_ADDRESS to the cluster."
        )
        raise ConfigError("--cluster", cluster, hint)
    return nodes


def nodes_now(on_cpu: bool) -> Sequence[Node]:
    """Return the nodes that a run would find now. Starts no Ray.

    Raises ConfigError if the cluster of RAY_ADDRESS does not answer.
    """
    if starts_ray_here(on_cpu):
        gpus, cpus = resources_here(on_cpu)
        return [Node("this machine", gpus, cpus, gpus, cpus, None if on_cpu else smallest_card(), is_drivers=True)]
    with joined(hint_without_answer()):
        return inventory()
