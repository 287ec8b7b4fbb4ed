"""Creates Ray placement groups from a plan, on the planned nodes, and waits for them with a time limit.

Bundles of GPUs are pinned to their nodes by Ray's label with the node's id, so that the run matches the plan. Engines
with their own GPUs may also use nodes that join later: if an engine's node dies and is replaced, Ray moves the bundles
to the new node and restarts the engines. The memory's bundles are on the driver's node, beside the run folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.plan import Group, Plan
from meds_openrlhf.placement.ray_cluster import inventory
from meds_openrlhf.placement.shortage import describe_shortage

NODE_LABEL = "ray.io/node-id"


def reserve(
    plan: Plan,
    timeout_seconds: float,
    setting: str = "meds.placement.timeout_seconds",
    since: float | None = None,
) -> dict[str, PlacementGroup]:
    """Reserve every group of the plan; the result maps each role to its placement group.

    If a group is not ready in time, releases everything and raises ConfigError, which names ``setting`` as the source
    of the timeout. It counts from ``since`` on, by the monotonic clock, by default from now.
    """
    deadline = (time.monotonic() if since is None else since) + timeout_seconds
    made: dict[str, PlacementGroup] = {}
    try:
        for group in plan.groups:
            reserved = _on_its_nodes(group, plan)
            made.update(dict.fromkeys(group.roles, reserved))
        if plan.shards:
            selectors = [{NODE_LABEL: node.id} for node in plan.shards]
            cpus = [{"CPU": 1.0}] * len(plan.shards)
            made["memory"] = placement_group(cpus, strategy="PACK", bundle_label_selector=selectors)
        for role, reserved in made.items():
            if not reserved.wait(max(deadline - time.monotonic(), 0.001)):
                raise _too_late(plan, role, setting, timeout_seconds)
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
    return [
        {
            "num_cpus": 1,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        }
        for index in range(count)
    ]


def _on_its_nodes(group: Group, plan: Plan) -> PlacementGroup:
    selectors = [{NODE_LABEL: node.id} for node in group.nodes]
    if group.roles == ("engines",) and len(plan.nodes) > 1:
        selectors = [{NODE_LABEL: _none_of(other for other in plan.nodes if other != node)} for node in group.nodes]
    return placement_group(group.bundles, strategy="PACK", bundle_label_selector=selectors)


def _none_of(nodes: Iterable[Node]) -> str:
    """Return Ray's selector for any other node, including nodes that are not in the plan."""
    return f"!in({','.join(node.id for node in nodes)})"


def _too_late(plan: Plan, role: str, setting: str, seconds: float) -> ConfigError:
    """Return the error for a role whose group Ray has not placed in time."""
    needs = [group.need for group in plan.groups if role in group.roles]
    cpus = sum(need.gpus for need in needs) or len(plan.shards)  # the memory has no GPUs
    hint = f"have passed, and the run still {describe_shortage(needs, cpus, inventory())}"
    return ConfigError(setting, seconds, f"{hint} (`ray status` shows who holds the rest)")
