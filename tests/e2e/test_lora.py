"""A run with LoRA on the real stack: engines follow the adapters, a killed run resumes, its model can be evaluated."""

import json
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from meds_openrlhf.checkpoints import newest_complete
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import LARGEST_VLLM_KL, StepLog
from tests.e2e.conftest import MEDS, command, finish, finished, start
from tests.e2e.runs import Run, ray_process, require_all_gone, require_memory_at_work, wait_for_step
from tests.waiting import wait_until

TARGETS = ("q_proj", "v_proj", "down_proj", "lm_head")


@pytest.mark.slow
def test_a_killed_run_with_adapters_resumes_and_is_evaluated(assets: Path, tmp_path: Path) -> None:
    """ZeRO-3 over two ranks, a reference model, adapters in attention, MLP and unembedding."""
    paths = RunPaths(tmp_path / "run")
    options = ["--ds.zero_stage=3", "--actor.num_gpus_per_node=2", "--train.micro_batch_size=4", "--ckpt.save_steps=3"]
    options += ["--ds.lora.rank=8", "--ds.lora.alpha=32", "--ds.lora.target_modules", *TARGETS]
    options += ["--actor.adam.lr=0.005", "--algo.kl.init_coef=0.001", "--ref.num_gpus_per_node=1"]
    options += ["--algo.advantage.is_correction_level=token"]  # reports how engines and policy differ
    train = command(assets, paths.root, *options)
    first = start(train)
    wait_for_step(StepLog(paths.metrics), 4, first)
    wait_until(lambda: newest_complete(paths) is not None)
    family = psutil.Process(first.pid).children(recursive=True)
    ray_process(first.pid, "PolicyActor").kill()
    assert finish(first)[0] == 1
    require_all_gone(family)

    assert finished([*train, "--resume"]).returncode == 0
    run = Run(paths)
    require_memory_at_work(run)
    assert all(abs(step["vllm_kl"]) < LARGEST_VLLM_KL for step in run.steps)
    # Adapters begin at zero, and move: engines without them would be as far from the policy as the reference is.
    assert run.steps[0]["kl"] == 0 < 2 * LARGEST_VLLM_KL < run.steps[-1]["kl"]

    base, trained = (load_file(folder / "model.safetensors") for folder in (assets / "policy", paths.model))
    assert set(trained) == set(base)
    changed = {name for name in base if not torch.equal(base[name].bfloat16(), trained[name])}
    assert changed == {name for name in base if name.removesuffix(".weight").split(".")[-1] in TARGETS}
    words = ["eval", str(paths.root), "--benchmarks", f"{assets}/eval.jsonl", "--out", str(tmp_path / "eval")]
    assert finished([*MEDS, *words, "--n=4", "--max-tokens=80", "--allow-cpu"]).returncode == 0
    samples = [json.loads(line) for line in (tmp_path / "eval/run/eval.jsonl").read_text().splitlines()]
    assert len(samples) == 8 * 4
    assert all(sample["text"] for sample in samples)
