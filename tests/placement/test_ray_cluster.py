"""Plans become Ray placement groups, on one node with made-up GPUs; more nodes are in test_ray_cluster_on_nodes."""

from collections.abc import Sequence

import pytest
from ray.util.placement_group import PlacementGroup, placement_group_table

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.inventory import Node, Shortage
from meds_openrlhf.placement.plan import Plan, make_plan
from meds_openrlhf.placement.ray_cluster import inventory, plan_when_free, release, reserve, shard_options
from meds_openrlhf.placement.roles import RoleRequest
from tests.processes import wait_until

pytestmark = pytest.mark.usefixtures("ray_cluster", "_all_free")

GPUS = 8
COLOCATED = [RoleRequest("policy", 1, 8), RoleRequest("engines", 4, 2, "policy")]


def wait_until_all_is_free() -> None:
    """Ray reports what was given back within a moment."""
    wait_until(lambda: all(node.free_gpus == node.gpus and node.free_cpus == node.cpus for node in inventory()))


@pytest.fixture
def _all_free(ray_cluster: object) -> None:
    wait_until_all_is_free()


def plan_of(requests: list[RoleRequest], shards: int = 2) -> Plan:
    return make_plan(requests, inventory(), shards, controller_cpus=1)


def free_gpus() -> float:
    return sum(node.free_gpus for node in inventory())


def nodes_of(group: PlacementGroup) -> list[str]:
    placed = placement_group_table(group)["bundles_to_node_id"]
    return [placed[index] for index in sorted(placed)]


def test_roles_that_share_gpus_share_a_group_and_everything_is_given_back() -> None:
    plan = plan_of(COLOCATED)
    groups = reserve(plan, timeout_seconds=20)
    assert set(groups) == {"policy", "engines", "memory"}
    assert groups["engines"] is groups["policy"]
    assert nodes_of(groups["policy"]) == [node.id for node in plan.groups[0].nodes]
    wait_until(lambda: free_gpus() == 0)
    options = shard_options(groups["memory"], 2)
    assert [one["scheduling_strategy"].placement_group_bundle_index for one in options] == [0, 1]
    release(groups)
    wait_until(lambda: free_gpus() == GPUS)


def test_nodes_that_join_are_waited_for_and_others_are_not() -> None:
    wide, said = [RoleRequest("policy", 1, 2 * GPUS)], list[str]()
    with pytest.raises(Shortage, match="1 x 16 GPUs on one node for policy and 17 CPUs; free:"):
        plan_when_free(lambda nodes: make_plan(wide, nodes, 0, 1), 60.0, said.append)
    assert said == []
    looks: list[int] = []

    def plan(nodes: Sequence[Node]) -> Plan:
        looks.append(len(nodes))
        return make_plan(wide if len(looks) < 3 else COLOCATED, nodes, 0, 1)

    assert plan_when_free(plan, 60.0, said.append, joining=60.0).gpus == GPUS
    (line,) = said
    assert line.startswith("waiting up to 60 seconds for nodes with room for 1 x 16 GPUs on one node for policy")


def test_what_is_in_use_is_seen_and_not_waited_for_too_long() -> None:
    plan, lines = plan_of(COLOCATED), list[str]()
    held = reserve(plan_of([RoleRequest("policy", 1, 2)], shards=0), timeout_seconds=20)
    try:
        wait_until(lambda: free_gpus() == GPUS - 2)
        assert plan_of(COLOCATED).gpus == GPUS  # for the whole node
        with pytest.raises(ConfigError) as caught:
            reserve(plan, timeout_seconds=8)  # the shards, whose group fits, have their two CPUs by then
        name = inventory()[0].name
        said = str(caught.value).replace("14 of 16", "12 of 16")  # on a slow machine before the shards have theirs
        assert said == (
            "meds.placement.timeout_seconds=8: expired before policy got GPUs and CPUs (needed: policy + engines: 8 "
            f"GPUs on {name}; memory: 2 shards on CPUs; free: {name} with 6 of 8 GPUs and 12 of 16 CPUs). `ray status` "
            "shows who uses the rest."
        )
        with pytest.raises(
            ConfigError, match=r"^--wait=2.0: expired before the run got GPUs and CPUs .needed: policy \+ "
        ):
            plan_when_free(lambda _: plan_of(COLOCATED), 2.0, lines.append, setting="--wait")
        (line,) = lines
        assert line.startswith("waiting up to 2 seconds for what others use (needed: policy + engines: 8 GPUs on ")
        assert plan_when_free(lambda _: plan_of([RoleRequest("policy", 1, 6)]), 2.0, lines.append).gpus == 6
        with pytest.raises(ConfigError, match=r"^--wait=0.1: expired before"):
            reserve(plan, timeout_seconds=0.1, setting="--wait")
    finally:
        release(held)
    wait_until(lambda: free_gpus() == GPUS)
    release(reserve(plan, timeout_seconds=20))
