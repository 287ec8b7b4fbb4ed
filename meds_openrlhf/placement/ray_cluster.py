"""A Ray cluster: the inventory of its nodes, and the placement groups of a plan on them.

Bundles of GPUs are pinned to their nodes by Ray's label with the node's id, so that the run matches the plan. Engines
with their own GPUs may also use nodes that join later: if an engine's node dies and is replaced, Ray moves the bundles
to the new node and restarts the engines. The memory's bundles are on the driver's node, beside the run folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from operator import itemgetter
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.inventory import GB, GPU_MEMORY_GB, Node, Shortage, describe_nodes
from meds_openrlhf.placement.plan import Group, Plan
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


@cache  # the inventory is taken again and again while a run waits for nodes
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


NODE_LABEL = "ray.io/node-id"
POLL_SECONDS = 1.0  # between two looks at the nodes


def plan_when_free(
    plan: Callable[[Sequence[Node]], Plan],
    seconds: float,
    say: Callable[[str], None],
    joining: float = 0.0,
    setting: str = "meds.placement.timeout_seconds",
) -> Plan:
    """Return ``plan`` of the cluster's nodes once all that it needs is free; ``say`` gets a line for what it waits.

    Nothing is reserved meanwhile, so that runs that wait do not hold GPUs. Raises the plan's Shortage if the nodes have
    no room, and none with room join within ``joining`` seconds; ConfigError, which names ``setting`` as the source of
    the timeout, if what others use is not free after ``seconds``.
    """
    began, told = time.monotonic(), set[str]()
    while True:
        waited = time.monotonic() - began
        try:
            found = plan(inventory())
            if not found.waits:
                return found
            if waited >= seconds:
                hint = f"expired before the run got GPUs and CPUs ({_lacking(found)}). `ray status` shows who uses the "
                raise ConfigError(setting, seconds, f"{hint}rest.")
            kind, line = "use", f"waiting up to {seconds:g} seconds for what others use ({_lacking(found)})"
        except Shortage as shortage:
            if waited >= joining:
                raise
            kind, line = "join", f"waiting up to {joining:g} seconds for nodes with room for {shortage.text}"
        if kind not in told:
            say(line)
        told.add(kind)
        time.sleep(POLL_SECONDS)


def reserve(
    plan: Plan,
    timeout_seconds: float,
    setting: str = "meds.placement.timeout_seconds",
) -> dict[str, PlacementGroup]:
    """Reserve every group of the plan; the result maps each role to its placement group.

    If a group is not ready in time, releases everything and raises ConfigError, which names ``setting`` as the source
    of the timeout.
    """
    deadline = time.monotonic() + timeout_seconds
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
                hint = f"expired before {role} got GPUs and CPUs ({_lacking(plan)}). `ray status` shows who uses the "
                raise ConfigError(setting, timeout_seconds, f"{hint}rest.")
    except BaseException:  # Ctrl-C included
        release(made)
        raise
    return made


def _lacking(plan: Plan) -> str:
    return f"needed: {plan}; free: {describe_nodes(inventory())}"


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
