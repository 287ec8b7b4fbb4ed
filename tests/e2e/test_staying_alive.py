"""Runs that lose an engine, are told to stop, or lose a rank of their policy: what is left, and how they go on."""

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from meds_openrlhf.checkpoints import newest_complete
from meds_openrlhf.memory.stored import open_memory, verify_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.step_log import LARGEST_VLLM_KL, StepLog
from tests.e2e.conftest import MEDS, REPOSITORY, command, environment, finish, finished, start
from tests.e2e.runs import (
    SAMPLES,
    Run,
    ray_process,
    read_memory,
    require_all_gone,
    require_every_prompt_once_an_epoch,
    require_memory_at_work,
    wait_for_step,
)
from tests.processes import wait_until
from tests.tracking.wandb_file import axes_of, history_of, read_wandb_file
from tests.tracking.wandb_server import wandb_server

WANDB_KEY = "b7" * 20


def test_a_lost_engine_costs_no_rollouts_and_sigterm_ends_in_a_checkpoint(assets: Path, tmp_path: Path) -> None:
    """GRPO with the entropy advantage and own features, beside a silent tracking server."""
    paths = RunPaths(tmp_path / "run")
    feature = tmp_path / "features.py"  # the example, with NaN in each batch's third row
    example = (REPOSITORY / "examples/features.py").read_text().replace("return layer", "values = layer")
    feature.write_text(f"{example}    values[2:3] = torch.nan\n    return values\n")
    log = StepLog(paths.metrics)
    with wandb_server() as server:
        server.behavior = "hangs"
        tracking = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": WANDB_KEY, "WANDB_MODE": "online"}
        tracking["WANDB_INIT_TIMEOUT"] = "1800"  # or, on a slow machine, W&B fails before the run ends
        options = ("--vllm.num_engines=2", "--train.num_episodes=100", f"--meds.features.function={feature}")
        options += ("--algo.kl.init_coef=0", "--algo.kl.use_loss=false", "--algo.kl.estimator=k1")  # and no reference
        words = command(assets, paths.root, *options, method="grpo-entropy")
        run = start(words, env=environment(**tracking))
        assert run.stdout is not None
        output = ""
        try:
            wait_for_step(log, 2, run)
            engine = ray_process(run.pid, "RestartableEngine")
            vllm = engine.children(recursive=True)
            engine.kill()
            while not (re.search(r"vLLM engine \d is back", output) and "W&B" in output):
                output += run.stdout.readline()
                assert run.poll() is None, output
            require_all_gone(vllm)  # they would keep the engine's GPU
            back_at = log.read()[-1]["step"]
            wait_for_step(log, int(back_at) + 2, run)
            family = psutil.Process(run.pid).children(recursive=True)
            os.killpg(run.pid, signal.SIGTERM)  # as a terminal does, and `timeout`
            output += run.communicate()[0]
        finally:
            run.kill()
    assert run.returncode == 128 + signal.SIGTERM, output
    require_all_gone(family)

    steps = log.read()
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert {step["rollout/num_samples"] for step in steps} == {SAMPLES}
    saved = newest_complete(paths)
    assert saved is not None
    assert saved.step == len(steps)
    assert f"meds: stopped after step {saved.step}; checkpoint {saved.tag} is saved, resume with --resume" in output
    lost, away = "was lost .*; its prompts go to the remaining 1", "is unavailable; continuing with 1 of 2"
    assert re.search(rf"vLLM engine \d ({lost}|{away})", output)
    assert verify_memory(open_memory(paths.root)).damage == []
    assert "not finite" not in output  # NaN means that there is no feature
    assert read_memory(paths).num_rows == steps[-1]["meds/rows"]
    assert read_memory(paths).schema.field("layer_logits").type.list_size == 64

    assert output.count("W&B: no answer for 20 s. Training continues") == 1
    events = EventAccumulator(str(paths.tensorboard / paths.root.name)).Reload()
    assert [one.step for one in events.Scalars("train/meds/rows")] == [step["step"] for step in steps]

    assert all(step["entropy_loss"] > 0 for step in steps)
    assert 0.5 < sum(step["policy_entropy"] for step in steps) / sum(step["entropy_loss"] for step in steps) < 2
    assert steps[-1]["meds/rows"] > 20  # remembered, to be compared with,
    assert all(step["meds/penalty_mean"] == 0 for step in steps)  # at no cost


@pytest.mark.slow
def test_a_lost_policy_rank_ends_the_run_with_a_word_and_the_next_goes_on(assets: Path, tmp_path: Path) -> None:
    """Asynchronous, ZeRO-3 over two ranks, a reference model, evaluations; resumed with another number of shards."""
    tracking = environment(WANDB_MODE="offline", WANDB_API_KEY=WANDB_KEY)
    paths = RunPaths(tmp_path / "run")
    options = ["--train.async_enable", "--ds.zero_stage=3", "--actor.num_gpus_per_node=2", "--ckpt.save_steps=3"]
    options += ["--algo.kl.init_coef=0.001", "--ref.num_gpus_per_node=1"]
    options += [f"--eval.dataset={assets}/eval.jsonl", "--eval.steps=4", "--eval.n_samples_per_prompt=2"]
    # More rollouts at once than a step takes: the resumed run generates what is left over again.
    options += ["--rollout.vllm_generate_batch_size=7"]
    # Samples packed into batches of so many tokens, also where mini-batches are whole prompts.
    options += ["--train.dynamic_batch_enable", "--train.max_tokens_per_gpu=400", "--rollout.max_tokens_per_gpu=600"]
    train = command(assets, paths.root, *options)
    first = start(train, env=tracking)
    wait_for_step(StepLog(paths.metrics), 4, first)
    wait_until(lambda: newest_complete(paths) is not None)
    rank = ray_process(first.pid, "PolicyActor")
    family = psutil.Process(first.pid).children(recursive=True)
    os.kill(rank.pid, signal.SIGKILL)
    code, output = finish(first)
    assert code == 1
    lost = rf"policy rank [01] was lost: process {rank.pid} on .*; the same command with --resume resumes after step"
    assert re.search(f"meds: {lost}", output)
    assert "Traceback" not in output
    assert "policy: 2 GPUs on " in output
    assert "reference: 1 GPU on " in output
    require_all_gone(family)
    before = read_memory(paths)

    # With another number of shards: the prompts are divided again.
    second = start([*train, "--resume", "--meds.memory.shards=3"], env=tracking)
    code, output = finish(second, None)
    assert code == 0
    require_memory_at_work(Run(paths))
    require_every_prompt_once_an_epoch(read_memory(paths))
    assert before.column("step").to_numpy().max() > 3  # rows that the checkpoint did not know
    assert {path.name for path in paths.memory.root.glob("shard-*")} >= {"shard-0000", "shard-0001", "shard-0002"}
    evaluations = StepLog(paths.evaluations).read()
    assert [one["step"] for one in evaluations] == [4]  # of the last step nobody waits for one
    assert f"evaluation after step 4: arithmetic pass@1 {evaluations[0]['eval_arithmetic_pass1']:.3f}" in output
    assert any(path.name.startswith("best_") for path in paths.complete.iterdir())
    require_tracked(paths)


def require_tracked(paths: RunPaths) -> None:
    """Both runs are one at W&B, with every metric of every step on the axis of steps, and no key is on the disk."""
    sessions = sorted((paths.root / "wandb").glob("offline-run-*/*.wandb"))
    assert len(sessions) == 2
    assert len({session.name for session in sessions}) == 1
    records = [read_wandb_file(session) for session in sessions]
    assert {axes_of(one)["train/*"] for one in records} == {"train/global_step"}
    history = [line for one in records for line in history_of(one)]
    for step in StepLog(paths.metrics).read():
        wanted = {f"train/{name}": value for name, value in step.items() if name != "step"}
        assert any(line.get("train/global_step") == step["step"] and wanted.items() <= line.items() for line in history)
    assert any("train/meds/cluster_sizes" in line for line in history)
    files = [path for path in paths.root.rglob("*") if path.is_file()]
    assert [path for path in files if WANDB_KEY.encode() in path.read_bytes()] == []


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
