"""Plans are plain data: these tests need neither Ray nor a cluster."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.inventory import Node, Shortage
from meds_openrlhf.placement.plan import Blocks, Plan, make_plan, pack
from meds_openrlhf.placement.roles import RoleRequest
from tests.placement.clusters import node

SPLIT = [RoleRequest("policy", 1, 4), RoleRequest("engines", 4, 1)]
COLOCATED = [
    RoleRequest("policy", 1, 8),
    RoleRequest("engines", 4, 2, "policy"),
    RoleRequest("reference", 1, 8, "policy"),
]
FEWER_GPUS = "Lower actor.num_gpus_per_node or add nodes."
FEWER_SHARDS = "Lower meds.memory.shards or add nodes."
NODE = node("10.0.0.1", gpus=8, cpus=32)


def plan_of(requests: list[RoleRequest], nodes: list[Node], shards: int = 2) -> Plan:
    return make_plan(requests, nodes, shards, controller_cpus=1)


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def test_split_gives_each_role_its_own_gpus() -> None:
    plan = plan_of(SPLIT, [NODE])
    assert str(plan) == "policy: 4 GPUs on 10.0.0.1; engines: 4 GPUs on 10.0.0.1; memory: 2 shards on CPUs"
    assert (plan.gpus, plan.cpus) == (8, 11)
    assert names(plan.shards) == ["10.0.0.1", "10.0.0.1"]
    without = plan_of(SPLIT, [NODE], shards=0)
    assert (without.shards, "memory" in str(without)) == ((), False)
    (group,) = plan_of(COLOCATED, [NODE]).groups
    assert (group.roles, group.members, len(group.nodes)) == (("policy", "engines", "reference"), tuple(COLOCATED), 8)


def test_a_block_of_the_policy_stays_on_a_node_and_bundles_follow_the_nodes() -> None:
    nodes = [node("a", 8, 32), node("b", 8, 32, free_gpus=4), node("c", 8, 32)]
    plan = plan_of([RoleRequest("policy", 2, 8), RoleRequest("engines", 2, 2)], nodes)
    assert names(plan.groups[0].nodes) == ["a"] * 8 + ["c"] * 8
    assert names(plan.groups[1].nodes) == ["b"] * 4
    # Engines that share GPUs are not torn by small blocks of the policy.
    nodes = [node("a", 6, 32), node("b", 6, 32), node("c", 6, 32)]
    plan = plan_of([RoleRequest("policy", 4, 2), RoleRequest("engines", 2, 4, "policy")], nodes)
    assert Counter(names(plan.groups[0].nodes)) == {"a": 4, "b": 4}


def test_the_memory_is_on_the_drivers_node() -> None:
    nodes = [node("a", 8, 10), node("b", 8, 10), replace(node("head", 0, 4), is_drivers=True)]
    assert names(plan_of([RoleRequest("policy", 2, 8)], nodes, shards=3).shards) == ["head"] * 3
    assert names(plan_of([RoleRequest("policy", 1, 8)], nodes[:2], shards=2).shards) == ["a", "a"]
    text = shortage([RoleRequest("policy", 2, 8)], nodes, shards=5, advice=FEWER_SHARDS)
    assert text.startswith("2 x 8 GPUs on one node for policy and 22 CPUs (5 of them on head for the memory); free: ")
    # The driver's node needs CPUs for the memory beside those for its GPUs.
    nodes = [replace(node("a", 8, 10), is_drivers=True), node("b", 8, 10)]
    assert names(plan_of([RoleRequest("policy", 1, 8)], nodes, shards=3).groups[0].nodes) == ["b"] * 8
    text = shortage([RoleRequest("policy", 2, 8)], nodes, shards=3, advice=FEWER_SHARDS)
    assert text.startswith("2 x 8 GPUs on one node for policy")


def shortage(requests: list[RoleRequest], nodes: list[Node], shards: int = 2, advice: str = FEWER_GPUS) -> str:
    with pytest.raises(Shortage) as caught:
        plan_of(requests, nodes, shards)
    assert str(caught.value) == f"cluster: has no room for {caught.value.text}. {advice}"
    return caught.value.text


def test_what_lacks_is_counted_by_role_and_the_largest_is_to_be_lowered() -> None:
    nodes = [node(f"10.0.0.{i}", 7 if i == 3 else 8, 32) for i in range(4)]
    assert shortage([RoleRequest("policy", 4, 8)], nodes, shards=3) == (
        "4 x 8 GPUs on one node for policy and 36 CPUs (3 of them on 10.0.0.0 for the memory); free: 3 nodes with 8 "
        "GPUs and 32 CPUs each, 10.0.0.3 with 7 GPUs and 32 CPUs"
    )
    roles, advice = [RoleRequest("policy", 1, 1), RoleRequest("engines", 16, 1)], "Lower vllm.num_engines or add nodes."
    text = "1 GPU for policy, 16 GPUs for engines and 18 CPUs; free: 10.0.0.1 with 8 GPUs and 32 CPUs"
    assert shortage(roles, [NODE], shards=0, advice=advice) == text
    assert shortage(roles, [], advice=advice).endswith("; free: no nodes")
    advice = "Share GPUs (meds.placement.mode=colocate) or add nodes."
    shortage([RoleRequest("policy", 1, 1), RoleRequest("engines", 1, 1)], [node("a", 1, 8)], advice=advice)
    nodes = [node("a", 8, 8), replace(node("b", 8, 64), is_drivers=True)]  # with too few CPUs
    text = shortage([RoleRequest("policy", 2, 8)], [nodes[0], nodes[0]], shards=3, advice=FEWER_SHARDS)
    assert text.endswith("and 20 CPUs (3 of them on a for the memory); free: 2 nodes with 8 GPUs and 8 CPUs each")
    plan_of([RoleRequest("policy", 2, 8)], nodes, shards=3)
    unequal = r"^vllm.num_engines=2: makes 2 GPUs for engines, which share those of policy, but these are 4. Make"
    with pytest.raises(ConfigError, match=unequal):
        plan_of([RoleRequest("policy", 1, 4), RoleRequest("engines", 2, 1, "policy")], [NODE])


@st.composite
def requests(draw: st.DrawFn) -> list[RoleRequest]:
    sizes = st.integers(1, 4)
    tensor_parallel = draw(sizes)
    engines = draw(st.integers(1, 4))
    if draw(st.booleans()):
        total = engines * tensor_parallel
        per_node = draw(st.sampled_from([size for size in range(1, total + 1) if total % size == 0]))
        policy = RoleRequest("policy", total // per_node, per_node)
        return [policy, RoleRequest("engines", engines, tensor_parallel, "policy")]
    policy = RoleRequest("policy", draw(st.integers(1, 3)), draw(sizes))
    critic = RoleRequest("critic", draw(st.integers(1, 2)), draw(sizes))
    return [policy, RoleRequest("engines", engines, tensor_parallel), *([critic] if draw(st.booleans()) else [])]


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    sizes = draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 10)), min_size=1, max_size=4))
    return [node(f"n{i}", 8, 10, free_gpus=gpus, free_cpus=cpus) for i, (gpus, cpus) in enumerate(sizes)]


@given(wanted=requests(), nodes=clusters(), shards=st.integers(0, 4))
def test_a_plan_keeps_to_the_law(wanted: list[RoleRequest], nodes: list[Node], shards: int) -> None:
    try:
        plan = plan_of(wanted, nodes, shards)
    except Shortage:
        return
    taken = Counter(one for group in plan.groups for one in group.nodes)
    held = Counter(plan.shards)
    # No GPU has two owners, and nothing is taken that is not there: all of what is free, or all of the whole nodes.
    amounts = ([(one.free_gpus, one.free_cpus) for one in nodes], [(one.gpus, one.cpus) for one in nodes])
    assert any(
        all(taken[one] <= gpus and taken[one] + held[one] <= cpus for one, (gpus, cpus) in zip(nodes, there))
        and plan.cpus <= sum(cpus for _, cpus in there)
        for there in amounts
    )
    assert {role for group in plan.groups for role in group.roles} == {request.role for request in wanted}
    assert len(plan.shards) == shards
    for group in plan.groups:
        for member in group.members:
            assert len(group.nodes) == member.gpus
            for block in range(member.blocks):  # no block spans two nodes
                assert len(set(group.nodes[block * member.block_gpus : (block + 1) * member.block_gpus])) == 1
        changes = [one for one, following in pairwise(group.nodes) if one != following]
        assert len(changes) == len(set(changes))  # a node's bundles follow each other


# ── blocks onto nodes: for sizes that divide each other, what is not found is impossible ──


def test_a_block_stays_on_one_node_and_small_ones_fill_up() -> None:
    assert pack([8, 8], [(1, 8), (8, 1)]) == [[1, 0], [0, 8]]
    assert pack([4, 8], [(1, 8)]) == [[0, 1]]
    assert pack([4, 4], [(1, 8)]) is None
    assert pack([7, 8], [(4, 2)]) == [[0, 4]]
    assert pack([8, 3, 8], [(3, 1)]) == [[0, 3, 0]]  # the fullest that has room
    assert pack([8, 8, 8], [(2, 8), (4, 1)]) == [[1, 1, 0], [0, 0, 4]]


def demands(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[list[Blocks]]:
    return st.lists(st.tuples(st.integers(1, 4), sizes), max_size=3)


rooms = st.lists(st.integers(0, 8), min_size=1, max_size=4)


@given(room=rooms, wanted=demands(st.sampled_from([1, 2, 4])))
def test_sizes_that_divide_each_other_are_packed_whenever_they_fit(room: list[int], wanted: list[Blocks]) -> None:
    assert (pack(room, wanted) is not None) == _possible(room, wanted)


def _possible(room: list[int], wanted: list[Blocks]) -> bool:
    """By trying all ways."""
    if not wanted:
        return True
    first, rest = wanted[0], wanted[1:]
    for blocks in product(*(range(free // first[1] + 1) for free in room)):
        if sum(blocks) == first[0]:
            left = [free - count * first[1] for free, count in zip(room, blocks, strict=True)]
            if _possible(left, rest):
                return True
    return False
