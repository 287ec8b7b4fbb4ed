"""Where engines go."""

import pytest

from meds_openrlhf.evaluation.sampling.fleet import plan_engines
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.shortage import Shortage
from tests.placement.clusters import node

TWO_NODES = [node("a", 8, 64), node("b", 8, 64)]


def engines(nodes: list[Node], count: int | None, tensor_parallel: int, at_most: int = 1000) -> int:
    plan = plan_engines(nodes, count, tensor_parallel, at_most)
    for first in range(0, plan.gpus, tensor_parallel):  # an engine's bundles are on one node
        assert len({node.name for node in plan.groups[0].nodes[first : first + tensor_parallel]}) == 1
    return plan.gpus // tensor_parallel


def test_as_many_as_there_is_room_for() -> None:
    assert engines(TWO_NODES, None, 1) == 16
    assert engines(TWO_NODES, None, 3) == 4
    assert engines(TWO_NODES, None, 8) == 2
    assert engines([Node("a", 8, 64, free_gpus=3, free_cpus=64)], None, 1) == 3
    assert engines(TWO_NODES, None, 1, at_most=5) == 5  # no more than there are blocks
    assert engines(TWO_NODES, 2, 4, at_most=1) == 2  # unless they are asked for


@pytest.mark.parametrize(
    ("nodes", "count", "tensor_parallel", "message"),
    [
        (TWO_NODES, 17, 1, "17 GPUs for engines and 17 CPUs; free are 2 nodes with 8 GPUs and 64 CPUs each. Lower --"),
        (TWO_NODES, None, 16, "1 x 16 GPUs on one node for engines and 16 CPUs; free are"),
        ([node("a", 0, 8)], None, 1, "1 GPU for engines and 1 CPU; free are a with 0 GPUs and 8 CPUs. Lower --e"),
        ([Node("a", 1, 8, free_gpus=0, free_cpus=8)], None, 1, "free are a with 0 of 1 GPU and 8 CPUs. Lower --engin"),
    ],
)
def test_a_cluster_without_room(nodes: list[Node], count: int | None, tensor_parallel: int, message: str) -> None:
    with pytest.raises(Shortage) as lack:
        plan_engines(nodes, count, tensor_parallel, at_most=1000)
    assert message in str(lack.value)
