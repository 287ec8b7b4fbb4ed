"""A run's flags and a cluster's nodes become OpenRLHF's arguments and a plan."""

from dataclasses import replace
from typing import Any

import pytest

from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.config.schema import PenaltySettings, PlacementSettings, PolicySettings
from meds_openrlhf.placement import inventory
from meds_openrlhf.placement.inventory import Shortage, imagined_cluster
from meds_openrlhf.placement.recipe import Recipe
from meds_openrlhf.training.start import placing
from meds_openrlhf.training.start.placing import Placement, Request, place, place_when_free, recipe_of, request_of
from tests.placement.clusters import found_shape

QWEN = "Qwen/Qwen3-8B"
FLAGS: dict[str, Any] = {
    "actor.model_name_or_path": QWEN, "algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0,
    "rollout.n_samples_per_prompt": 8, "reward.remote_url": "reward.py", "ds.zero_stage": 3,
}  # fmt: skip
FREE = imagined_cluster("1x8", 140.0)
BUSY = [replace(FREE[0], free_gpus=3.0)]


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "find_shape", found_shape)
    monkeypatch.setattr(inventory, "POLL_SECONDS", 0.0)


def config(mode: str, timeout: float = 0.2, **settings: Any) -> RunConfig:
    placement = PlacementSettings(mode=mode, timeout_seconds=timeout)
    return RunConfig(meds=MedsSettings(run_dir="runs/x", placement=placement, **settings), openrlhf={})


def recipe_from(flags: dict[str, Any]) -> Recipe:
    asked = request_of(config("flags"), flags)
    return recipe_of(asked, asked.args)


def placed(mode: str, cluster: str, saved: dict[str, int] | None = None, **flags: Any) -> Placement:
    run, wanted = config(mode), {**FLAGS, **{key.replace("__", "."): value for key, value in flags.items()}}
    return place(request_of(run, wanted, saved), imagined_cluster(cluster, 140.0))


def test_flags_that_are_given_stay_as_they_are() -> None:
    run = placed("flags", "1x8", actor__num_gpus_per_node=2, vllm__num_engines=3, rollout__batch_size=64)
    assert (run.args.actor.num_nodes, run.args.actor.num_gpus_per_node, run.args.vllm.num_engines) == (1, 2, 3)
    assert str(run.report.plan) == "policy: 2 GPUs on node 0; engines: 3 GPUs on node 0; memory: 2 shards on CPUs"
    without = request_of(config("split", enabled=False), FLAGS)
    assert place(without, FREE).report.plan.shards == ()


def test_counts_are_sized_and_openrlhf_parses_them() -> None:
    args = placed("auto", "4x8").args
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node, args.vllm.num_engines) == (4, 8, 32)
    assert (args.train.colocate_all, args.vllm.enable_sleep, args.ds.enable_sleep) == (True, True, True)
    assert args.vllm.gpu_memory_utilization == 0.7


def test_openrlhfs_parser_remarks_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for mode, parts in (("flags", {"vllm__num_engines": 1, "actor__num_gpus_per_node": 1}), ("auto", {})):
        placed(mode, "1x8", algo__kl__estimator="k2", **parts)
        assert capsys.readouterr().out.count("Recommend setting k2") == 1


def test_minibatches_of_whole_prompts_are_dealt_evenly_also_where_batches_are_dynamic() -> None:
    run = config("flags", policy=PolicySettings(minibatches="prompts"))
    flags = {**FLAGS, "vllm.num_engines": 1, "train.dynamic_batch_enable": True, "train.batch_size": 64}
    four, three = (request_of(run, flags | {"actor.num_gpus_per_node": ranks}) for ranks in (4, 3))
    assert place(four, FREE).report.plan.gpus == 5
    with pytest.raises(ConfigError, match=r"actor.num_gpus_per_node=3: makes 3 policy ranks, and the batches"):
        place(three, FREE)


def test_extras_fill_mini_batches_of_the_ranks_that_are_chosen() -> None:
    """With the placeholder of one rank, eight groups are whole mini-batches; on the eight ranks chosen they are not."""
    flags = {**FLAGS, "algo.dynamic_filtering_enable": True, "rollout.micro_batch_size": 16, "train.batch_size": 64}
    run = config("auto", penalty=PenaltySettings(extras=8))
    request = request_of(run, {**flags, "train.micro_batch_size": 8, "rollout.batch_size": 128})
    with pytest.raises(ConfigError, match=r"meds\.penalty\.extras=8: must be a multiple of 16 groups"):
        place(request, FREE)


def test_a_recipe_is_read_off_openrlhfs_arguments() -> None:
    flags = {
        **FLAGS, "vllm.num_engines": 1, "actor.num_gpus_per_node": 2, "ref.num_gpus_per_node": 2, "ds.lora.rank": 8,
        "train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 9000, "rollout.max_tokens_per_gpu": 12000,
        "ds.grad_accum_dtype": "fp32", "algo.kl.init_coef": 0.01, "ref.offload": True, "rollout.batch_size": 32,
        "train.colocate_actor_ref": True, "rollout.micro_batch_size": 2, "data.max_len": 10000,
    }  # fmt: skip
    found = recipe_from(flags)
    assert tuple(found.models) == ("policy", "engines", "reference")
    assert (found.gradient_bytes, found.lora_rank) == (4, 8)
    assert (found.train_tokens, found.forward_tokens) == (10000, 12000)  # a longer sample is a micro-batch of its own
    together = recipe_from(flags | {"ds.ring_attn_size": 2})  # ranks that share a batch share its limit
    assert (together.train_tokens, together.forward_tokens) == (18000, 24000)
    assert (found.batching.responses, found.batching.dynamic) == (256, True)
    assert found.hosts == {"reference": "policy"}
    assert found.offloaded == {"reference"}


def test_a_checkpoint_is_loaded_by_as_many_ranks_as_saved_it() -> None:
    assert placed("colocate", "4x8", saved={"policy": 16}).args.actor.num_nodes == 2
    split = placed("split", "4x8", saved={"policy": 8}).args
    assert (split.actor.num_nodes, split.vllm.num_engines) == (1, 24)
    with pytest.raises(
        ConfigError,
        match=r"^actor.num_gpus_per_node=8: makes 8 policy ranks, but 16 ranks saved the checkpoint .* make 16 ranks.$",
    ):
        placed("colocate", "4x8", saved={"policy": 16}, actor__num_nodes=1, actor__num_gpus_per_node=8)
    with pytest.raises(Shortage, match="no room for 2 x 8 GPUs on one node for policy "):
        placed("colocate", "1x8", saved={"policy": 16})


def request(timeout: float) -> Request:
    """Of a run that takes a node of 8 GPUs."""
    return request_of(config("colocate", timeout), {**FLAGS, "actor.num_gpus_per_node": 8})


def test_a_job_gets_its_place_once_there_is_room() -> None:
    seen = [BUSY, BUSY, FREE]
    found = place_when_free(request(timeout=60), False, lambda: seen.pop(0))
    assert seen == []
    assert found.report.plan.gpus == 8
    assert found.args.vllm.num_engines == 8


def test_a_job_that_never_fits_does_not_wait() -> None:
    seen = [imagined_cluster("1x4", 140.0)]
    with pytest.raises(
        Shortage,
        match=r"room for 1 x 8 GPUs on one node for policy \+ engines and 11 CPUs .*; free: node 0 with 4 GPUs",
    ):
        place_when_free(request(timeout=60), False, seen.pop)


def test_a_resumed_job_waits_for_a_node_that_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    seen = [[], [], FREE]
    assert place_when_free(request(timeout=60), True, lambda: seen.pop(0)).report.plan.gpus == 8
    assert [record.getMessage() for record in caplog.records] == [
        "waiting up to 60 seconds for room for 1 x 8 GPUs on one node for policy + engines and 11 CPUs; free: no nodes"
    ]


def test_a_new_job_is_not_sized_to_what_others_leave() -> None:
    seen = [BUSY, FREE]
    wanted = request_of(config("colocate", 60), FLAGS)
    assert place_when_free(wanted, False, lambda: seen.pop(0)).report.plan.gpus == 8
    late = replace(wanted, config=config("colocate", 0.01))
    counts = r"--actor.num_nodes=1 --actor.num_gpus_per_node=2 --vllm.num_engines=2 --vllm.tensor_parallel_size=1"
    with pytest.raises(
        Shortage,
        match=rf"free: node 0 with 3 of 8 GPUs and 128 CPUs. To run on what is free, set the counts: {counts}$",
    ):
        place_when_free(late, False, lambda: BUSY)
