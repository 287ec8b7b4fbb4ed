"""Nodes, imagined ones among them."""

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.inventory import Node, describe_nodes, imagined_cluster, smallest_gpu_memory
from tests.placement.clusters import node

NO_SHAPES = ["8", "4y8", "0x8", "4x0", "4x8x2", "-1x8", ""]


def test_an_imagined_cluster_has_equal_empty_nodes() -> None:
    nodes = imagined_cluster("4x8", 80.0)
    assert [node.name for node in nodes] == ["node 0", "node 1", "node 2", "node 3"]
    sizes = {(one.gpus, one.free_gpus, one.cpus, one.free_cpus, one.gpu_memory_gb) for one in nodes}
    assert sizes == {(8, 8, 128, 128, 80.0)}
    assert imagined_cluster("1x4", 80.0, cpus=9)[0].cpus == 9
    assert smallest_gpu_memory([*nodes, *imagined_cluster("1x8", 140.0)]) == 80.0
    assert smallest_gpu_memory([]) is smallest_gpu_memory([*nodes, Node("x", 1, 1, 1, 1)]) is None


WRONG = [((shape, 140.0), f"--cluster={shape}: must be nodes x GPUs per node, e.g. 4x8") for shape in NO_SHAPES]
WRONG += [(("1x8", 0.0), "--gpu-memory=0.0: must be above 0"), (("1x8", 80.0, 0), "--cpus=0: must be at least 1")]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_impossible_clusters_are_refused(words: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        imagined_cluster(*words)


def test_room_is_what_has_a_gpu_and_a_cpu() -> None:
    assert node("a", 8, 32).room() == 8
    assert node("a", 8, 32, free_gpus=5).room() == 5
    assert node("a", 8, 32, free_gpus=5).room(whole=True) == 8
    assert node("a", 8, 32, free_cpus=2.5).room() == 2
    assert node("a", 8, 32, free_gpus=0.8).room() == 0
    assert node("a", 8, 10).room(beside_cpus=4) == 6
    assert node("a", 8, 10).room(beside_cpus=12) == 0


def test_equal_nodes_are_described_together_and_single_ones_are_named() -> None:
    nodes = [node("a", 0, 4), node("b", 8, 128), node("c", 8, 128, free_gpus=7, free_cpus=100), node("d", 8, 128)]
    text = "2 nodes with 8 GPUs and 128 CPUs each, c with 7 of 8 GPUs and 100 of 128 CPUs, a with 0 GPUs and 4 CPUs"
    assert describe_nodes(nodes) == text
    assert describe_nodes([]) == "no nodes"
    many = [node(f"n{i:02}", 8, 32, free_gpus=i // 5) for i in range(30)]
    assert describe_nodes(many).endswith(", 5 nodes with 2 of 8 GPUs and 32 CPUs each, and 2 other kinds with less")
