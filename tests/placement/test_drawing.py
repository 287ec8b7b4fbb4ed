"""Plans as they are printed."""

from dataclasses import replace

import pytest

from meds_openrlhf.placement.drawing import draw
from meds_openrlhf.placement.inventory import Node, imagined_cluster
from meds_openrlhf.placement.plan import RoleRequest, make_plan
from meds_openrlhf.placement.report import PlanReport, report
from meds_openrlhf.placement.sizing import Sizing
from tests.placement.clusters import node, recipe

SPLIT = [RoleRequest("policy", 1, 4), RoleRequest("engines", 2, 2), RoleRequest("reference", 1, 4, "policy")]
SIZING = Sizing("split", "as the configuration says", {})


def report_of(
    nodes: list[Node], requests: list[RoleRequest] = SPLIT, model: str | None = "Qwen/Qwen3-8B", **changes: object
) -> PlanReport:
    plan = make_plan(requests, nodes, 2, 1)
    return report(plan, SIZING, recipe(tuple(request.role for request in requests), model=model, **changes))


def lines_of(found: PlanReport) -> list[str]:
    return draw(found, "my.yaml").splitlines()


def test_gpus_of_one_engine_are_joined_and_those_in_use_are_crossed_out() -> None:
    nodes = [node("10.0.0.1", 4, 32), node("10.0.0.2", 8, 32, free_gpus=6, free_cpus=20)]
    lines = lines_of(report_of(nodes))
    assert lines[0] == (
        "my.yaml on 1 node with 4 GPUs and 32 CPUs, 1 node with 8 GPUs (6 free) and 32 CPUs (20 free), 140 GB per GPU"
    )
    assert "  10.0.0.1  PR PR PR PR      6 of 32 (2 shards)  0" in lines
    assert "  10.0.0.2  E─E E─E · · x x  4 of 20 free        0" in lines
    assert "  P policy   R reference   E engines   · free   x in use" in lines
    assert "  total   8 of 12 GPUs, 11 of 64 CPUs (one per GPU and shard, 1 for controllers)" in lines
    assert any(line.startswith("  in use  others hold 2 GPUs; the plan is for the rest") for line in lines)
    row = next(line for line in lines if line.startswith("  engines"))
    assert row.split()[:6] == ["engines", "2", "x", "TP", "2", "4"]
    assert "sequences of 4096 tokens" in row


def test_equal_nodes_are_one_line() -> None:
    lines = lines_of(report_of(imagined_cluster("40x4", 80.0)))
    assert [line for line in lines if "of 64" in line] == [
        "  0      PR PR PR PR  6 of 64 (2 shards)  0",
        "  1      E─E E─E      4 of 64             0",
        "  2-39   · · · ·      0 of 64             0",
    ]
    real = [node(f"10.0.0.{i}", 4, 64) for i in range(40)]
    assert any(line.startswith("  10.0.0.2 … 10.0.0.39 (38)") for line in lines_of(report_of(real)))


def test_what_is_not_known_says_why() -> None:
    text = draw(report_of(imagined_cluster("1x8", 80.0), model=None), "my.yaml")
    assert "  memory  unknown: some/model: not readable\n" in text
    assert text.count("unknown") == 6  # every role, the peak, the node, and the reason
    nameless = [Node("a", 8, 32, 8, 32)]
    assert "unknown: Ray names no accelerator type that is known" in draw(report_of(nameless), "my.yaml")


def test_roles_that_do_not_fit_their_gpus_are_named() -> None:
    found = report_of(imagined_cluster("1x8", 24.0))
    line = (
        "policy + reference: about 61 GB on a GPU of 24 GB; lower rollout.micro_batch_size or data.max_len, or set "
        "ds.adam_offload, or give it more ranks"
    )
    assert found.overfull == [line]
    assert f"  too full  {line}" in lines_of(found)
    assert report_of(imagined_cluster("1x8", 140.0)).overfull == []
    small = [replace(one, memory_gb=8.0) for one in imagined_cluster("1x8", 140.0)]
    full = report_of(small, [RoleRequest("policy", 1, 4), RoleRequest("engines", 4, 1)], adam_offload=True)
    assert full.overfull == [
        "node 0: about 122 GB of sleeping and offloaded states, in 8 GB that Ray's object store leaves; no "
        "ds.adam_offload, or more nodes with fewer ranks each"
    ]
    assert any(line.endswith("122 of 8") for line in lines_of(full))
    narrow = report_of(imagined_cluster("1x8", 16.0), [RoleRequest("policy", 1, 4), RoleRequest("engines", 4, 1)])
    assert narrow.overfull[-1] == (
        "an engine's KV cache holds no sequence of data.max_len 4096 tokens; raise vllm.tensor_parallel_size to 2, or "
        "lower data.max_len"
    )
    single = report_of(imagined_cluster("2x1", 16.0), [RoleRequest("policy", 1, 1), RoleRequest("engines", 1, 1)])
    assert single.overfull[-1].endswith("4096 tokens; lower data.max_len")


@pytest.mark.parametrize(("nodes", "changes", "ranks"), [
    (32, {}, 256), (16, {}, 0), (32, {"context_parallel": 2}, 0), (16, {"train_batch": 128}, 128)
])  # fmt: skip
def test_the_plan_says_if_a_rank_gets_one_response_of_a_mini_batch(
    nodes: int, changes: dict[str, int], ranks: int
) -> None:
    requests = [RoleRequest("policy", nodes, 8), RoleRequest("engines", nodes * 8, 1, "policy")]
    found = report_of(imagined_cluster(f"{nodes}x8", 140.0), requests)
    found = replace(found, recipe=replace(found.recipe, **changes))
    line = f"each of {ranks} policy ranks gets one response of a mini-batch and waits for the longest; raise "
    assert any(drawn.startswith("  thin ") and line in drawn for drawn in lines_of(found)) == bool(ranks)


def test_gpus_that_stay_free_say_why() -> None:
    requests = [RoleRequest("policy", 2, 8), RoleRequest("engines", 16, 1, "policy")]
    found = report_of(imagined_cluster("3x8", 140.0), requests)
    assert found.idle == (
        "8 of 24 free GPUs stay free: train.batch_size 256 and 8192 responses by 4 can be split over 1, 2, 4, 8, 16, "
        "… 256 ranks"
    )
    assert any(line.startswith("  idle      8 of 24 free GPUs stay free: ") for line in lines_of(found))
    flags = replace(found, sizing=replace(SIZING, mode="flags"))
    assert flags.idle == "8 of 24 free GPUs stay free: the counts that are given ask for no more"
    given = replace(found, recipe=replace(found.recipe, given={"actor.num_nodes": 2}))
    assert given.idle == flags.idle
    without_cpus = [node(name, 8, 8) for name in "ab"] + [replace(node("c", 8, 3), is_drivers=True)]
    assert report_of(without_cpus, requests).idle == "8 of 24 free GPUs stay free: no CPU is left for another"
    assert report_of(imagined_cluster("2x8", 140.0), requests).idle == ""
