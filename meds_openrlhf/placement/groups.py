"""Creates Ray placement groups from a plan, on the planned nodes, and waits for them with a time limit.

Bundles of GPUs are pinned to their nodes by Ray's label with the node's id, so that the run matches the plan. Engines
with their own GPUs may also use nodes that join later: if an engine's node dies and is replaced, Ray moves the bundles
to the new node and restarts the engines. The memory's bundles are on the driver's node, beside the run folder.
"""

from __future__ import annotations

import time
from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import describe_nodes
from meds_openrlhf.placement.plan import Group, Plan
from meds_openrlhf.placement.ray_cluster import inventory

NODE_LABEL = "ray.io/node-id"


def reserve(
    plan: Plan, timeout_seconds: float, setting: str = "meds.placement.timeout_seconds", since: float | None = None
) -> dict[str, PlacementGroup]:
    """Reserve every group of the plan; the result maps each role to its placement group.

    If a group is not ready in time, releases everything and raises ConfigError, which names ``setting`` as the source
    of the timeout. It counts from ``since`` on, by the monotonic clock, by default from now.
    """
    deadline = (time.monotonic() if since is None else since) + timeout_seconds
    made: dict[str, PlacementGroup] = {}
    try:
        for group in plan.groups:
            made |= dict.fromkeys(group.roles, _on_its_nodes(group, plan))
        if plan.shards:
            selectors = [{NODE_LABEL: node.id} for node in plan.shards]
            cpus = [{"CPU": 1.0}] * len(plan.shards)
            made["memory"] = placement_group(cpus, strategy="PACK", bundle_label_selector=selectors)
        for role, reserved in made.items():
            if not reserved.wait(max(deadline - time.monotonic(), 0.001)):
                hint = f"expired before {role} got GPUs and CPUs (needed: {plan}; free: "
                hint += f"{describe_nodes(inventory())}). `ray status` shows who uses the rest."
                raise ConfigError(setting, timeout_seconds, hint)
    except BaseException:  # Ctrl-C included
        release(made)
        raise
    return made


def release(groups: dict[str, PlacementGroup]) -> None:
    """Release every group; Ray kills the actors that still run in them."""
    for reserved in {group.id: group for group in groups.values()}.values():
        remove_placement_group(reserved)


def shard_options(group: PlacementGroup, count: int) -> list[dict[str, Any]]:
    """Return Ray actor options that put memory shard i into bundle i."""
    bundles = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index) for index in range(count)]
    return [{"num_cpus": 1, "scheduling_strategy": bundle} for bundle in bundles]


def _on_its_nodes(group: Group, plan: Plan) -> PlacementGroup:
    """Reserve a group on its nodes; engines with their own GPUs may also use any node outside the plan."""
    selectors = [{NODE_LABEL: node.id} for node in group.nodes]
    if group.roles == ("engines",) and len(plan.nodes) > 1:
        others = [",".join(other.id for other in plan.nodes if other != node) for node in group.nodes]
        selectors = [{NODE_LABEL: f"!in({ids})"} for ids in others]
    bundles = [{"GPU": 1.0, "CPU": 1.0} for _ in group.nodes]
    return placement_group(bundles, strategy="PACK", bundle_label_selector=selectors)
