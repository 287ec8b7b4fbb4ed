"""Plans become Ray placement groups, on a cluster of several nodes with made-up GPUs, some of which die."""

from collections import Counter
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.groups import release, reserve, shard_options
from meds_openrlhf.placement.plan import Plan, RoleRequest, make_plan
from meds_openrlhf.placement.ray_cluster import inventory
from meds_openrlhf.placement.shortage import Shortage
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

NODES, GPUS = 3, 4
SPLIT = [RoleRequest("policy", 1, 4), RoleRequest("engines", 3, 2)]
COLOCATED = [RoleRequest("policy", 3, 4), RoleRequest("engines", 6, 2, "policy")]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 0, "include_dashboard": False})
    for _ in range(NODES):
        nodes.add_node(num_cpus=6, num_gpus=GPUS, resources={"accelerator_type:H200": 1})
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(autouse=True)
def _all_free() -> None:
    """Ray reports what was given back within a moment."""
    wait_until(lambda: all(node.free_gpus == node.gpus and node.free_cpus == node.cpus for node in inventory()))


def plan_of(requests: list[RoleRequest], shards: int = 2) -> Plan:
    return make_plan(requests, inventory(), shards, controller_cpus=1)


def nodes_of(group: PlacementGroup) -> list[str]:
    placed = placement_group_table(group)["bundles_to_node_id"]
    return [placed[index] for index in sorted(placed)]


def test_the_inventory_tells_nodes_of_one_machine_apart() -> None:
    nodes = inventory()
    assert Counter((node.gpus, node.free_gpus, node.cpus, node.gpu_memory_gb) for node in nodes) == {
        (4.0, 4.0, 6.0, 141.0): NODES,
        (0.0, 0.0, 2.0, None): 1,
    }
    assert len({node.name for node in nodes}) == NODES + 1
    assert all(node.name.endswith(f"#{node.id[:6]}") for node in nodes)


@pytest.mark.parametrize("requests", [SPLIT, COLOCATED], ids=["split", "colocate"])
def test_every_bundle_lands_on_its_planned_node(requests: list[RoleRequest]) -> None:
    from meds_openrlhf.training import cpu

    cpu.install()
    from openrlhf.trainer.ray.utils import get_bundle_indices

    plan = plan_of(requests)
    groups = reserve(plan, timeout_seconds=20)
    try:
        assert set(groups) == {"policy", "engines", "memory"}
        for group in plan.groups:
            assert nodes_of(groups[group.roles[0]]) == [node.id for node in group.nodes]
        engines = plan.request_of("engines")
        assert engines is not None
        # OpenRLHF's own way to the bundles of an engine: they follow each other, on one node.
        indices = [get_bundle_indices(groups["engines"], index, 2) for index in range(engines.blocks)]
        assert indices == [[2 * index, 2 * index + 1] for index in range(engines.blocks)]
    finally:
        release(groups)


@ray.remote(num_cpus=0.2, num_gpus=0.2)
class Rank:
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def test_ranks_run_where_the_plan_says() -> None:
    plan = plan_of(SPLIT)
    groups = reserve(plan, timeout_seconds=20)
    ranks = []
    try:
        for index in (0, 3):
            strategy = PlacementGroupSchedulingStrategy(groups["engines"], placement_group_bundle_index=index)
            ranks.append(Rank.options(scheduling_strategy=strategy).remote())
        group = plan.group_of("engines")
        assert group is not None
        assert ray.get([rank.node.remote() for rank in ranks], timeout=60) == [group.nodes[0].id, group.nodes[3].id]
    finally:
        for rank in ranks:
            ray.kill(rank)
        release(groups)


def test_colocated_roles_get_one_group_and_everything_is_given_back() -> None:
    plan = plan_of(COLOCATED)
    groups = reserve(plan, timeout_seconds=20)
    assert groups["engines"] is groups["policy"]
    wait_until(lambda: sum(node.free_gpus for node in inventory()) == 0)
    options = shard_options(groups["memory"], 2)
    assert [one["scheduling_strategy"].placement_group_bundle_index for one in options] == [0, 1]
    release(groups)
    wait_until(lambda: sum(node.free_gpus for node in inventory()) == NODES * GPUS)


def test_a_plan_sees_what_is_in_use() -> None:
    held = reserve(plan_of([RoleRequest("policy", 1, 1)], shards=0), timeout_seconds=20)
    try:
        wait_until(lambda: min(node.free_gpus for node in inventory() if node.gpus) == 3)
        busy = next(node for node in inventory() if node.free_gpus == 3)
        with pytest.raises(
            Shortage, match=rf"needs 3 nodes with 4 GPUs and 5 CPUs each; node {busy.name} has 3 GPUs free"
        ):
            plan_of(COLOCATED)
        assert busy not in make_plan([RoleRequest("policy", 2, 4)], inventory(), 0, 1).groups[0].nodes
    finally:
        release(held)


def test_what_cannot_be_placed_in_time_is_said_and_released() -> None:
    plan = plan_of(COLOCATED)
    held = reserve(plan_of([RoleRequest("policy", 1, 2)], shards=0), timeout_seconds=20)
    try:
        name = next(node.name for node in inventory() if node.id == nodes_of(held["policy"])[0])
        wait_until(lambda: min(node.free_gpus for node in inventory() if node.gpus) == 2)
        with pytest.raises(ConfigError) as caught:
            reserve(plan, timeout_seconds=1)
        text = str(caught.value)
        assert text.startswith(
            "meds.placement.timeout_seconds: 1 have passed: still waiting for room for policy ranks "
        )
        assert f": 4 GPUs and 4 CPUs on {name}, where 2 GPUs and 4 CPUs are free" in text
        assert text.count("GPUs and") == 2  # the other nodes have room
        with pytest.raises(ConfigError, match=r"^--wait: 0.1 have passed"):
            reserve(plan, timeout_seconds=0.1, setting="--wait")
    finally:
        release(held)
    wait_until(lambda: sum(node.free_gpus for node in inventory()) == NODES * GPUS)
    release(reserve(plan, timeout_seconds=20))


def test_the_memory_moves_when_a_node_dies(cluster: Cluster) -> None:
    """From here on the cluster has other nodes than before."""
    groups = reserve(plan_of([RoleRequest("policy", 1, 1)], shards=3), timeout_seconds=20)
    try:
        with_policy = nodes_of(groups["policy"])[0]
        workers = {node.node_id: node for node in cluster.worker_nodes}
        lost = next(one for one in nodes_of(groups["memory"]) if one != with_policy and one in workers)
        cluster.remove_node(workers[lost], allow_graceful=False)
        wait_until(lambda: not {lost, ""} & set(nodes_of(groups["memory"])))
        wait_until(lambda: placement_group_table(groups["memory"])["state"] == "CREATED")  # a moment later
    finally:
        release(groups)


def test_engines_move_to_the_node_that_replaces_theirs_and_to_no_other(cluster: Cluster) -> None:
    plan = plan_of([RoleRequest("policy", 1, 2), RoleRequest("engines", 2, 2)], shards=0)
    groups = reserve(plan, timeout_seconds=20)
    try:
        with_policy = nodes_of(groups["policy"])[0]
        assert nodes_of(groups["engines"]) == [node.id for node in plan.groups[1].nodes]
        lost = next(node for node in nodes_of(groups["engines"]) if node != with_policy)
        cluster.remove_node({node.node_id: node for node in cluster.worker_nodes}[lost], allow_graceful=False)
        wait_until(lambda: placement_group_table(groups["engines"])["state"] == "RESCHEDULING")
        new = cluster.add_node(num_cpus=6, num_gpus=GPUS).node_id
        wait_until(lambda: placement_group_table(groups["engines"])["state"] == "CREATED")
        moved = [new if node.id == lost else node.id for node in plan.groups[1].nodes]
        assert nodes_of(groups["engines"]) == moved
    finally:
        release(groups)
