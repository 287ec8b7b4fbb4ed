"""Plans become Ray placement groups, on a cluster of several nodes with made-up GPUs, some of which die."""

from collections import Counter
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from meds_openrlhf.placement.ray_cluster import inventory, release, reserve
from meds_openrlhf.placement.roles import RoleRequest
from tests.placement.clusters import request_of
from tests.placement.test_ray_cluster import nodes_of, plan_of, wait_until_all_is_free
from tests.processes import wait_until

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
    wait_until_all_is_free()


def test_the_inventory_tells_nodes_of_one_machine_apart() -> None:
    nodes = inventory()
    assert Counter((node.gpus, node.free_gpus, node.cpus, node.gpu_memory_gb) for node in nodes) == {
        (4.0, 4.0, 6.0, 140.0): NODES,
        (0.0, 0.0, 2.0, None): 1,
    }
    assert len({node.name for node in nodes}) == NODES + 1
    assert all(node.name.endswith(f"#{node.id[:6]}") for node in nodes)


@pytest.mark.parametrize("requests", [SPLIT, COLOCATED], ids=["split", "colocate"])
def test_every_bundle_lands_on_its_planned_node(requests: list[RoleRequest]) -> None:
    from meds_openrlhf.training.openrlhf import cpu

    cpu.install()
    from openrlhf.trainer.ray.utils import get_bundle_indices

    plan = plan_of(requests)
    groups = reserve(plan, timeout_seconds=20)
    try:
        assert set(groups) == {"policy", "engines", "memory"}
        for group in plan.groups:
            assert nodes_of(groups[group.roles[0]]) == [node.id for node in group.nodes]
        assert nodes_of(groups["memory"]) == [ray.get_runtime_context().get_node_id()] * 2
        engines = request_of(plan, "engines")
        # OpenRLHF's own way to the bundles of an engine: they follow each other, on one node.
        indices = [get_bundle_indices(groups["engines"], index, 2) for index in range(engines.blocks)]
        assert indices == [[2 * index, 2 * index + 1] for index in range(engines.blocks)]
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
