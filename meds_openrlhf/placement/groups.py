"""The only place that makes Ray placement groups: from a plan, awaited with a time limit."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.plan import BundleGroup, Node, Plan


def inventory() -> list[Node]:
    """The cluster's living nodes with all their GPUs and CPUs, free or not."""
    return [
        Node(node["NodeManagerAddress"], node["Resources"].get("GPU", 0.0), node["Resources"].get("CPU", 0.0))
        for node in ray.nodes()
        if node["Alive"]
    ]


def reserve(plan: Plan, timeout_seconds: float) -> dict[str, PlacementGroup]:
    """Reserve every group of the plan; the result maps each role to its placement group.

    Raises ConfigError, with everything released again, where a group is not ready in time.
    """
    made: list[tuple[BundleGroup, PlacementGroup]] = []
    deadline = time.monotonic() + timeout_seconds
    for group in plan.groups:
        made.append((group, placement_group(group.bundles, strategy=group.strategy)))
    for group, reserved in made:
        if not reserved.wait(max(deadline - time.monotonic(), 0.001)):
            free = ray.available_resources()
            release({role: one for each, one in made for role in each.roles})
            raise ConfigError(
                "meds.placement.timeout_seconds",
                timeout_seconds,
                f"have passed and the cluster still could not place {group}; free now are {free.get('GPU', 0):g} GPUs "
                f"and {free.get('CPU', 0):g} CPUs (`ray status` shows who holds the others)",
            )
    return {role: reserved for group, reserved in made for role in group.roles}


def release(groups: dict[str, PlacementGroup]) -> None:
    """Give every group back; what still runs in one is ended by Ray."""
    for reserved in {group.id: group for group in groups.values()}.values():
        remove_placement_group(reserved)


def shard_options(group: PlacementGroup, count: int) -> list[dict[str, Any]]:
    """Ray actor options that put memory shard i into bundle i."""
    return [
        {
            "num_cpus": 1,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        }
        for index in range(count)
    ]
