"""The only place that makes Ray placement groups: from a plan, on the planned nodes, awaited with a time limit.

Bundles of GPUs are pinned to their nodes by Ray's label of the node's id, so that what runs is what was planned.
Engines that have GPUs of their own may also go to nodes that come later: when theirs dies and is replaced, Ray moves
their bundles there and starts them again. The memory's bundles it may move anywhere, and the shards with them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.plan import Group, Plan
from meds_openrlhf.placement.ray_cluster import inventory
from meds_openrlhf.placement.waiting import Wanted, describe_waiting, wanted_by, wanted_by_memory

NODE_LABEL = "ray.io/node-id"


def reserve(
    plan: Plan, timeout_seconds: float, setting: str = "meds.placement.timeout_seconds"
) -> dict[str, PlacementGroup]:
    """Reserve every group of the plan; the result maps each role to its placement group.

    Raises ConfigError, with everything released again, where a group is not ready in time; it names ``setting``, which
    the time comes from.
    """
    deadline = time.monotonic() + timeout_seconds
    made: dict[str, PlacementGroup] = {}
    waiting: list[tuple[list[Wanted], PlacementGroup]] = []
    try:
        for group in plan.groups:
            reserved = _on_its_nodes(group, plan)
            made.update(dict.fromkeys(group.roles, reserved))
            waiting.append((wanted_by(group), reserved))
        if plan.shards:
            made["memory"] = placement_group([{"CPU": 1.0}] * len(plan.shards), strategy="SPREAD")
            waiting.append((wanted_by_memory(plan), made["memory"]))
        for wanted, reserved in waiting:
            if not reserved.wait(max(deadline - time.monotonic(), 0.001)):
                raise _too_late(setting, timeout_seconds, wanted)
    except BaseException:  # Ctrl-C included
        release(made)
        raise
    return made


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


def _on_its_nodes(group: Group, plan: Plan) -> PlacementGroup:
    selectors = [{NODE_LABEL: node.id} for node in group.nodes]
    if group.roles == ("engines",) and len(plan.nodes) > 1:
        selectors = [{NODE_LABEL: _none_of(other for other in plan.nodes if other != node)} for node in group.nodes]
    return placement_group(group.bundles, strategy="PACK", bundle_label_selector=selectors)


def _none_of(nodes: Iterable[Node]) -> str:
    """Ray's selector for any other node, those included that the plan does not know."""
    return f"!in({','.join(node.id for node in nodes)})"


def _too_late(setting: str, seconds: float, wanted: Sequence[Wanted]) -> ConfigError:
    return ConfigError(
        setting,
        seconds,
        f"have passed: {describe_waiting(wanted, inventory())} (`ray status` shows who holds the others)",
    )
