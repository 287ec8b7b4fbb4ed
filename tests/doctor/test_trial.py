"""Which trainings are tried, and what the metrics of their two steps say."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meds_openrlhf.config import MedsSettings, RunConfig, load_config
from meds_openrlhf.config.schema import PlacementSettings
from meds_openrlhf.doctor.trial import flags_of_parts, judge, trials

RECIPE = {
    "ds.ring_attn_size": 2, "ds.lora.rank": 8, "ds.lora.target_modules": ["q_proj"], "vllm.tensor_parallel_size": 4,
    "algo.advantage.is_correction_level": "seq", "train.dynamic_batch_enable": True, "vllm.num_engines": 16,
    "vllm.gpu_memory_utilization": 0.9, "train.async_enable": True, "actor.num_nodes": 4, "data.max_len": 4096,
    "rollout.batch_size": 512,
}  # fmt: skip
NOT_TRIED = {"vllm.num_engines", "vllm.gpu_memory_utilization", "train.async_enable", "actor.num_nodes", "data.max_len"}
NOT_TRIED |= {"rollout.batch_size"}


@pytest.mark.parametrize(
    ("steps", "advice"),
    [
        ([{"vllm_kl": 0.001, "meds/rows": 4.0}, {"vllm_kl": -0.002, "meds/rows": 9.0}], ""),
        ([{"vllm_kl": 0.3, "meds/rows": 4.0}, {"vllm_kl": 0.3, "meds/rows": 9.0}], "they compute other log-probs"),
        ([{"vllm_kl": 0.001, "meds/rows": 4.0}, {"vllm_kl": 0.4, "meds/rows": 9.0}], "the engines did not get"),
        ([{"vllm_kl": 0.001, "meds/rows": 0.0}, {"vllm_kl": 0.001}], "the memory got no rows"),
    ],
)
def test_the_first_fault_is_named(steps: list[dict[str, Any]], advice: str) -> None:
    finding = judge("training", steps)
    first, second = (abs(step["vllm_kl"]) for step in steps)
    assert finding.found.endswith(f"policy differ by {first:.4f} and, after a sync, {second:.4f} nats")
    assert finding.advice.startswith(advice)
    assert finding.word == ("WRONG" if advice else "ok")


@pytest.mark.parametrize(("gpus", "ranks"), [([1, 1], 0), ([2, 8], 2), ([7], 4), ([16], 8)])
def test_with_two_gpus_the_mode_of_recipes_is_tried_too(
    gpus: list[int], ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these ranks on a node; before that, one rank on each node."""
    nodes, configs = len(gpus), []
    modes = [("split", nodes, 1, None), ("colocate", nodes, ranks, 3)] if ranks else [("colocate", nodes, 1, None)]

    def train(command: list[str], **_: object) -> SimpleNamespace:
        config = load_config(command[4], command[5:])
        configs.append(config)
        return SimpleNamespace(returncode=2, stderr="a warning\nmeds: ds.x=1: must be 2.\n")

    monkeypatch.setattr(subprocess, "run", train)
    made = SimpleNamespace(policy="p", train="t")
    monkeypatch.setattr("meds_openrlhf.arithmetic.warm_start.prepare", lambda *_, **__: made)
    findings = list(trials(tmp_path, dict(zip("ab", gpus)), made_up=False, verbose=False))
    names = ("actor.num_nodes", "actor.num_gpus_per_node", "ds.zero_stage")
    found = [(config.meds.placement.mode, *(config.openrlhf.get(name) for name in names)) for config in configs]
    assert found == modes
    assert [finding.check for finding in findings] == ["training", "sharing"][: len(modes)]
    assert findings[0].found == "ds.x=1: must be 2."
    assert list(tmp_path.iterdir()) == []
    recipe = RunConfig(MedsSettings(run_dir="r", placement=PlacementSettings(mode="flags")), RECIPE)
    *_, last = trials(tmp_path, dict(zip("ab", gpus)), made_up=False, verbose=False, recipe=recipe)
    assert last.check == "recipe"
    own, ranks = configs[-1], max(ranks, 1)
    assert own.meds.placement.mode == "split"
    for flags, mode in (({}, "split"), ({"train.colocate_all": True}, "colocate")):
        recipe = RunConfig(MedsSettings(run_dir="r", placement=PlacementSettings(mode="flags")), flags)
        assert flags_of_parts(recipe)["meds.placement.mode"] == mode
    chosen = {name: value for name, value in RECIPE.items() if name not in NOT_TRIED}
    assert chosen.items() <= own.openrlhf.items()
    assert not NOT_TRIED & {name for name in own.openrlhf if own.openrlhf[name] == RECIPE.get(name)}
    assert own.openrlhf["rollout.batch_size"] == 4 * nodes * ranks  # counts of ranks and engines are the cluster's
