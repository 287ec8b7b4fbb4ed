"""A run's flags and a cluster's nodes become OpenRLHF's arguments and a plan."""

from types import SimpleNamespace
from typing import Any

import pytest

from meds_openrlhf.config import ConfigError, MedsSettings, RunConfig
from meds_openrlhf.config.schema import PenaltySettings, PlacementSettings, PolicySettings
from meds_openrlhf.placement.inventory import Shortage, imagined_cluster
from meds_openrlhf.placement.plan import Plan
from meds_openrlhf.training.start import placing
from meds_openrlhf.training.start.placing import arguments_of, plan_of
from tests.failing import failing
from tests.placement.clusters import found_shape, node

QWEN = "Qwen/Qwen3-8B"
FLAGS: dict[str, Any] = {
    "actor.model_name_or_path": QWEN, "algo.advantage.estimator": "group_norm", "algo.kl.init_coef": 0,
    "rollout.n_samples_per_prompt": 8, "reward.remote_url": "reward.py", "ds.zero_stage": 3,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "find_shape", found_shape)


def config(mode: str, flags: dict[str, Any] | None = None, **settings: Any) -> RunConfig:
    placement = PlacementSettings(mode=mode)
    return RunConfig(MedsSettings(run_dir="runs/x", placement=placement, **settings), {**FLAGS, **(flags or {})})


def placed(
    run: RunConfig, cluster: str = "1x8", saved: dict[str, int] | None = None, now: str | None = None
) -> tuple[SimpleNamespace, Plan]:
    """Sized to ``cluster`` and planned on it, or on what is there ``now``."""
    args, _ = arguments_of(run, run.openrlhf, lambda: imagined_cluster(cluster), saved or {})
    return args, plan_of(run, args, imagined_cluster(now or cluster), saved or {})


def test_flags_that_are_given_stay_as_they_are() -> None:
    given = {"actor.num_gpus_per_node": 2, "vllm.num_engines": 3, "rollout.batch_size": 64}
    args, plan = placed(config("flags", given))
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node, args.vllm.num_engines) == (1, 2, 3)
    assert str(plan) == "policy: 2 GPUs on node 0; engines: 3 GPUs on node 0; memory: 2 shards on CPUs"
    _, without = placed(config("split", enabled=False))
    assert without.shards == ()


def test_counts_are_sized_and_openrlhf_parses_them() -> None:
    args, plan = placed(config("auto"), "4x8")
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node, args.vllm.num_engines) == (4, 8, 32)
    assert (args.train.colocate_all, args.vllm.enable_sleep, args.ds.enable_sleep) == (True, True, True)
    assert args.vllm.gpu_memory_utilization == 0.7
    assert plan.gpus == 32


def test_quoted_counts_are_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert placed(config("auto", {"vllm.num_engines": "4"}))[0].actor.num_gpus_per_node == 4
    monkeypatch.setattr(placing, "size", failing(TypeError("a defect")))
    with pytest.raises(TypeError, match="a defect"):
        placed(config("auto"))


def test_openrlhfs_parser_runs_once(capsys: pytest.CaptureFixture[str]) -> None:
    few = {"vllm.num_engines": 1, "actor.num_gpus_per_node": 1}
    for mode, counts in (("flags", few), ("auto", {})):
        placed(config(mode, {"algo.kl.estimator": "k2", **counts}))
        assert capsys.readouterr().out.count("Recommend setting k2") == 1


@pytest.mark.parametrize("flag", [{"vllm.num_engine": 1}, {"train.batch_size": "many"}, {"vllm.num_engines": 0}])
def test_wrong_flags_are_refused_before_nodes_are_asked_for(flag: dict[str, Any]) -> None:
    run = config("auto", flag)
    with pytest.raises(ConfigError, match=f"^{next(iter(flag))}="):
        arguments_of(run, run.openrlhf, failing(AssertionError("asked for nodes")), {})


def test_minibatches_of_whole_prompts_are_dealt_evenly() -> None:
    flags = {"vllm.num_engines": 1, "train.dynamic_batch_enable": True, "train.batch_size": 64}
    four, three = (
        config("flags", {**flags, "actor.num_gpus_per_node": ranks}, policy=PolicySettings(minibatches="prompts"))
        for ranks in (4, 3)
    )
    assert placed(four)[1].gpus == 5
    with pytest.raises(ConfigError, match=r"actor.num_gpus_per_node=3: makes 3 policy ranks, and the batches"):
        placed(three)


def test_extras_fill_mini_batches_of_the_ranks_that_are_chosen() -> None:
    """On one rank, eight groups would be whole mini-batches; on the eight ranks chosen they are not."""
    flags = {"algo.dynamic_filtering_enable": True, "rollout.micro_batch_size": 16, "train.batch_size": 64}
    flags |= {"train.micro_batch_size": 8, "rollout.batch_size": 128}
    with pytest.raises(ConfigError, match=r"meds\.penalty\.extras=8: must be a multiple of 16 groups"):
        placed(config("auto", flags, penalty=PenaltySettings(extras=8)))


@pytest.mark.parametrize("mode", ["flags", "split", "colocate", "auto"])
def test_engines_are_as_wide_as_vllm_can_split_the_model(mode: str) -> None:
    counts = {"vllm.num_engines": 1, "actor.num_gpus_per_node": 1} if mode == "flags" else {}
    qwen = "Qwen/Qwen2.5-Math-7B"
    wide = config(mode, {"actor.model_name_or_path": qwen, "vllm.tensor_parallel_size": 8, **counts})
    with pytest.raises(ConfigError, match=r"_size=8: cannot split the 28 attention heads .* Use 1, 2, 4.$"):
        placed(wide, "4x8")
    placed(config(mode, {"actor.model_name_or_path": qwen, "vllm.tensor_parallel_size": 4, **counts}), "4x8")
    unknown = {"actor.model_name_or_path": "some/model", "vllm.tensor_parallel_size": 8, **counts}
    placed(config(mode, unknown), "4x8")


def test_a_resumed_run_keeps_its_ranks() -> None:
    args, _ = placed(config("colocate"), "4x8", saved={"policy": 16})
    assert args.actor.num_nodes == 2
    counts = {"actor.num_nodes": 1, "actor.num_gpus_per_node": 8}
    with pytest.raises(ConfigError, match=r"^actor.num_gpus_per_node=8: makes 8 policy ranks, but 16 ranks saved"):
        placed(config("colocate", counts), "4x8", saved={"policy": 16})
    with pytest.raises(Shortage, match="no room for 2 x 8 GPUs on one node for policy "):
        placed(config("colocate"), "1x8", saved={"policy": 16})


def test_counts_that_do_not_fit_are_refused_with_those_that_do() -> None:
    given = config("colocate", {"actor.num_gpus_per_node": 8})
    counts = r"--actor.num_nodes=1 --actor.num_gpus_per_node=4 --vllm.num_engines=4 --vllm.tensor_parallel_size=1"
    with pytest.raises(
        Shortage,
        match=r"room for 1 x 8 GPUs on one node for policy \+ engines and 11 CPUs .*; free: node 0 with 4 GPUs and 64 "
        rf"CPUs. Lower actor.num_gpus_per_node or add nodes. To run on what is there, set the counts: {counts}$",
    ):
        placed(given, "1x4")
    wide = config("split", {"actor.num_nodes": 2, "actor.num_gpus_per_node": 8, "vllm.tensor_parallel_size": 4})
    with pytest.raises(
        Shortage, match=r"set the counts: --actor.num_nodes=1 --actor.num_gpus_per_node=4 --vllm.num_engines=1$"
    ):
        placed(wide, "1x8")  # with engines as wide as they have to be
    by_flags = config("flags", {"actor.num_gpus_per_node": 8, "vllm.num_engines": 8})
    with pytest.raises(Shortage, match=r"Lower actor.num_gpus_per_node or add nodes.$"):
        placed(by_flags, "1x4")


def test_a_plan_is_for_what_is_free_or_for_whole_nodes_for_which_the_run_waits() -> None:
    run = config("colocate", {"actor.num_gpus_per_node": 4})
    args, _ = placed(run, "1x4")
    busy, free = node("a", 8, 128, free_gpus=3, free_cpus=20), node("b", 8, 128)
    assert {one.name for one in plan_of(run, args, [busy, free], {}).groups[0].nodes} == {"b"}
    assert plan_of(run, args, [busy], {}).gpus == 4
