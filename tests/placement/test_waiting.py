"""What a run says that it waits for."""

from dataclasses import replace

from meds_openrlhf.placement.plan import Plan, RoleRequest, make_plan
from meds_openrlhf.placement.waiting import describe_waiting, wanted_by, wanted_by_memory
from tests.placement.clusters import node

NODES = [node("10.0.0.1", 8, 32), node("10.0.0.2", 8, 32)]


def plan(*requests: RoleRequest) -> Plan:
    return make_plan(requests, NODES, memory_shards=3, controller_cpus=1)


def test_ranks_and_engines_that_wait_are_named_with_their_node() -> None:
    group = plan(RoleRequest("policy", 2, 8), RoleRequest("engines", 4, 4, "policy")).groups[0]
    now = [NODES[0], replace(NODES[1], free_gpus=7, free_cpus=20)]
    assert describe_waiting(wanted_by(group), now) == (
        "still waiting for room for policy ranks 8-15 + engines 2-3: 8 GPUs and 8 CPUs on 10.0.0.2, "
        "where 7 GPUs and 20 CPUs are free"
    )


def test_a_node_that_lacks_only_cpus_is_named_too() -> None:
    group = plan(RoleRequest("policy", 1, 1)).groups[0]
    now = [replace(NODES[0], free_cpus=0), NODES[1]]
    assert describe_waiting(wanted_by(group), now) == (
        "still waiting for room for policy rank 0: 1 GPU and 1 CPU on 10.0.0.1, where 8 GPUs and 0 CPUs are free"
    )


def test_a_node_that_left_is_named() -> None:
    group = plan(RoleRequest("policy", 2, 8)).groups[0]
    assert describe_waiting(wanted_by(group), NODES[:1]) == (
        "still waiting for room for policy ranks 8-15: 8 GPUs and 8 CPUs on 10.0.0.2, which has left the cluster"
    )


def test_the_memory_takes_any_node() -> None:
    run = plan(RoleRequest("policy", 1, 4), RoleRequest("engines", 2, 2))
    now = [replace(NODES[0], free_gpus=1, free_cpus=0), replace(NODES[1], free_gpus=0, free_cpus=2)]
    assert describe_waiting(wanted_by_memory(run), now) == (
        "still waiting for room for memory shards 0-2: 3 CPUs, where free are: 10.0.0.2 0 GPUs and 2 CPUs, "
        "10.0.0.1 1 GPU and 0 CPUs"
    )
    many = [replace(NODES[0], name=f"n{i}", free_cpus=0) for i in range(30)]
    assert describe_waiting(wanted_by_memory(run), many).endswith("n3 8 GPUs and 0 CPUs, 26 nodes less")


def test_room_that_ray_has_not_used_yet_is_no_shortage() -> None:
    group = plan(RoleRequest("policy", 1, 8)).groups[0]
    assert describe_waiting(wanted_by(group), NODES) == (
        "Ray has not placed policy ranks 0-7 yet, though there is room"
    )
