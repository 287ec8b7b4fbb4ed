"""The nodes that a run is sized to: those that are stated, those that Ray has now, or this machine's without a Ray."""

from __future__ import annotations

from collections.abc import Sequence

from meds_openrlhf.placement.inventory import Node, imagined_cluster
from meds_openrlhf.placement.ray_cluster import inventory
from meds_openrlhf.runtime.devices import smallest_card
from meds_openrlhf.runtime.ray_connection import joined, resources_here, starts_ray_here


def nodes_of(cluster: str | None, on_cpu: bool) -> Sequence[Node]:
    """Return the nodes of ``cluster``, such as ``4x8``, or what a run would find now. Starts no Ray.

    Raises ConfigError for a cluster of another form, or if the one of RAY_ADDRESS does not answer.
    """
    if cluster is not None:
        return imagined_cluster(cluster)
    if starts_ray_here(on_cpu):
        gpus, cpus = resources_here(on_cpu)
        return [Node("this machine", gpus, cpus, gpus, cpus, smallest_card() if not on_cpu else None, is_drivers=True)]
    with joined("Unset it to start a cluster here, or state one with --cluster, e.g. 4x8."):
        return inventory()
