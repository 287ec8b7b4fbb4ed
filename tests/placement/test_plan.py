"""Plans are plain data: these tests need neither Ray nor a cluster."""

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.plan import Node, RoleRequest, make_plan, require_fit

SPLIT = [RoleRequest("policy", 4), RoleRequest("engines", 4)]
COLOCATED = [RoleRequest("policy", 8), RoleRequest("engines", 8, "policy"), RoleRequest("reference", 8, "policy")]
NODE = Node("10.0.0.1", gpus=8, cpus=32)


def test_split_gives_each_role_its_own_gpus() -> None:
    plan = make_plan(SPLIT, memory_shards=2, controller_cpus=1)
    assert [str(group) for group in plan.groups] == [
        "policy: 4 x 1 GPU + 1 CPU",
        "engines: 4 x 1 GPU + 1 CPU",
        "memory: 2 x 1 CPU",
    ]
    assert (plan.gpus, plan.cpus) == (8, 11)
    assert plan.groups[0].bundles == [{"CPU": 1.0, "GPU": 1.0}] * 4
    assert plan.groups[2].bundles == [{"CPU": 1.0}] * 2
    assert plan.groups[2].strategy == "SPREAD"


def test_colocated_roles_share_one_group() -> None:
    plan = make_plan(COLOCATED, memory_shards=2, controller_cpus=1)
    assert plan.groups[0].roles == ("policy", "engines", "reference")
    assert plan.gpus == 8
    assert plan.group_of("engines") is plan.group_of("policy")
    assert plan.group_of("critic") is None


def test_without_a_memory_there_is_no_memory_group() -> None:
    assert make_plan(SPLIT, memory_shards=0, controller_cpus=1).group_of("memory") is None


def test_roles_that_share_must_ask_for_the_same() -> None:
    with pytest.raises(ConfigError, match=r"vllm.num_engines: 2 GPUs in all do not fit the 4 of the policy"):
        make_plan([RoleRequest("policy", 4), RoleRequest("engines", 2, "policy")], 1, 1)


def test_a_cluster_that_is_large_enough_passes() -> None:
    require_fit(make_plan(SPLIT, 2, 1), [NODE])
    require_fit(make_plan(SPLIT, 2, 1), [Node("a", 4, 8), Node("b", 4, 8)])


def test_too_few_gpus_name_the_largest_role_and_the_shortage() -> None:
    plan = make_plan([RoleRequest("policy", 16), RoleRequest("engines", 2)], 2, 1)
    with pytest.raises(ConfigError, match=r"actor.num_gpus_per_node: 16 is too many: the run needs 18 GPUs .* has 8;"):
        require_fit(plan, [NODE])


def test_too_few_cpus_are_named_too() -> None:
    with pytest.raises(ConfigError, match=r"cluster: '8 CPUs' are too few: the run needs 11"):
        require_fit(make_plan(SPLIT, 2, 1), [Node("10.0.0.1", gpus=8, cpus=8)])
