"""Plans as they are printed."""

import re
from dataclasses import replace

import pytest

from meds_openrlhf.config.schema import RolloutSettings
from meds_openrlhf.placement.engine_limits import engine_limits
from meds_openrlhf.placement.inventory import Node, imagined_cluster
from meds_openrlhf.placement.plan import make_plan
from meds_openrlhf.placement.report import PlanReport, draw
from meds_openrlhf.placement.roles import RoleRequest
from tests.placement.clusters import arguments, models, node

SPLIT = [RoleRequest("policy", 1, 4), RoleRequest("engines", 2, 2), RoleRequest("reference", 1, 4, "policy")]


def report_of(
    nodes: list[Node], requests: list[RoleRequest] = SPLIT, model: str | None = "Qwen/Qwen3-8B", **changes: object
) -> PlanReport:
    plan = make_plan(requests, nodes, 2, 1)
    (width,) = {request.block_gpus for request in requests if request.role == "engines"}
    beside = [request.role for request in requests if request.role not in ("policy", "engines")]
    args, found = arguments(*beside, vllm__tensor_parallel_size=width, **changes), models(*beside, name=model)
    limits = engine_limits(args, found["engines"].shape, RolloutSettings(), plan.gpu_memory_gb)
    return PlanReport(plan, "split", args, found, limits)


def lines_of(found: PlanReport) -> list[str]:
    return draw(found, "my.yaml").splitlines()


def test_gpus_of_one_engine_are_joined_and_those_in_use_are_crossed_out() -> None:
    nodes = [node("10.0.0.1", 4, 32), node("10.0.0.2", 8, 32, free_gpus=6, free_cpus=20)]
    lines = lines_of(report_of(nodes))
    head = "my.yaml on 10.0.0.2 with 6 of 8 GPUs and 20 of 32 CPUs, 10.0.0.1 with 4 GPUs and 32 CPUs, 140 GB per GPU"
    assert lines[0] == head
    assert "  10.0.0.1  PR PR PR PR      6 of 32 (2 shards)    0" in lines
    assert "  10.0.0.2  E─E E─E · · x x  4 of 20               0" in lines
    assert "  P policy   R reference   E engines   · free   x in use" in lines
    assert "  total   8 of 12 GPUs, 11 of 64 CPUs (one per GPU and shard, 1 for controllers)" in lines
    assert "  in use  2 GPUs, by others; not in this plan" in lines
    row = next(line for line in lines if line.startswith("  engines"))
    assert row.split()[:6] == ["engines", "2", "x", "TP", "2", "4"]
    assert "  engine  its KV cache holds 435 sequences of 4096 tokens, 870 run at a time" in lines


def test_a_plan_for_gpus_that_others_use_says_that_the_run_waits_for_them() -> None:
    lines = lines_of(report_of([node("a", 4, 32, free_gpus=2, free_cpus=20), node("b", 4, 32, free_gpus=3)]))
    assert "  in use  3 GPUs, by others; the run waits for what it needs of them" in lines
    assert "  a      PR PR PR PR  6 of 32 (2 shards)    0" in lines
    assert "  b      E─E E─E      4 of 32               0" in lines


def test_what_is_not_known_says_why() -> None:
    text = draw(report_of(imagined_cluster("1x8", 80.0), model=None), "my.yaml")
    assert "  memory  unknown: some/model: not readable\n" in text
    assert text.count("unknown") == 6  # every role, the peak, the node, and the reason
    nameless = [Node("a", 8, 32, 8, 32)]
    assert "unknown: Ray names no known accelerator type" in draw(report_of(nameless), "my.yaml")


def test_roles_and_nodes_that_are_too_full_are_named() -> None:
    found = report_of(imagined_cluster("1x8", 24.0))
    (line,) = found.overfull
    assert line.startswith("policy + reference on a GPU: about 61 GB of 24 GB. Lower train.micro_batch_size, rollou")
    assert f"  too full  {line}" in lines_of(found)
    assert report_of(imagined_cluster("1x8", 140.0)).overfull == []
    small = [replace(node, memory_gb=8.0) for node in imagined_cluster("1x8", 140.0)]
    full = report_of(small, [RoleRequest("policy", 1, 4), RoleRequest("engines", 4, 1)], ds__adam_offload=True)
    (line,) = full.overfull
    assert line.startswith("sleeping and offloaded states on node 0: about 122 GB of 8 GB. Use fewer ranks per node")
    assert any(line.endswith("122 of 8") for line in lines_of(full))
    narrow = report_of(imagined_cluster("1x8", 16.0), [RoleRequest("policy", 1, 4), RoleRequest("engines", 4, 1)])
    small_cache = "the KV cache of an engine is too small for 4096 tokens. Raise vllm.tensor_parallel_size or vllm.gpu"
    assert narrow.overfull[-1].startswith(small_cache)
    greedy = report_of(imagined_cluster("1x8", 80.0), SPLIT[:2], vllm__gpu_memory_utilization=1.0)
    assert greedy.overfull == ["engines on a GPU: about 81 GB of 80 GB. Lower vllm.gpu_memory_utilization"]


@pytest.mark.parametrize(("nodes", "each"), [(32, "1"), (8, None)])
def test_ranks_with_few_responses_are_named(nodes: int, each: str | None) -> None:
    requests = [RoleRequest("policy", nodes, 8), RoleRequest("engines", nodes * 8, 1, "policy")]
    found = [row for row in lines_of(report_of(imagined_cluster(f"{nodes}x8", 140.0), requests)) if "  few" in row]
    wanted = f"  few       a policy rank gets {each} of a mini-batch's 256 responses, and idles"
    assert [row.partition(" until the")[0] for row in found] == ([wanted] if each else [])


def test_gpus_that_stay_free_are_counted() -> None:
    requests = [RoleRequest("policy", 2, 8), RoleRequest("engines", 16, 1, "policy")]
    (line,) = [row for row in lines_of(report_of(imagined_cluster("3x8", 140.0), requests)) if "idle" in row]
    _, unused, divide = re.split("idle +|; the batches ", line)
    assert unused == "8 of 24 free GPUs are not used"
    assert divide.endswith("train.batch_size 256 in micro-batches of 1) divide among 1, 2, 4, 8, 16, … 256 ranks")
    assert "idle" not in draw(report_of(imagined_cluster("2x8", 140.0), requests), "my.yaml")
