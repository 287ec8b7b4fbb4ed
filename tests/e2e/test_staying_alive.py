"""A run that loses an engine, is told to stop, and loses a rank of its policy: what is left of it, and what it says."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from meds_openrlhf.checkpoints import newest_complete
from meds_openrlhf.memory.tools.stored_memory import open_memory
from meds_openrlhf.memory.tools.verify import verify_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from tests.e2e.conftest import SAMPLES, STEPS
from tests.e2e.test_resume import read_memory, start, wait_for_step
from tests.tracking.sending.wandb_file import axes_of, history_of, read_wandb_file

WANDB_KEY = "b7" * 20


def ray_process(driver: subprocess.Popen, title: str) -> psutil.Process:
    """The last one of the driver's Ray workers that run the actor ``title``."""
    found = []
    for one in psutil.Process(driver.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # others may go while one looks
            if one.name().startswith(f"ray::{title}"):
                found.append(one)
    return found[-1]


def require_all_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


def test_a_lost_engine_costs_no_rollouts_and_sigterm_ends_in_a_checkpoint(assets: Path, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    log = StepLog(paths.metrics)
    run = start(assets, paths.root, "--vllm.num_engines=2", "--train.num_episodes=100")
    output = ""
    try:
        wait_for_step(log, 2, run)
        engine = ray_process(run, "RestartableEngine")
        vllm = engine.children(recursive=True)
        engine.kill()
        assert run.stdout is not None
        while not re.search(r"vLLM engine \d is back", output):
            output += run.stdout.readline()
            assert run.poll() is None, output
        require_all_gone(vllm)  # they would keep the engine's GPU
        back_at = log.read()[-1]["step"]
        wait_for_step(log, int(back_at) + 2, run)
        family = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGTERM)
        output += run.communicate(timeout=120)[0]
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
    assert f"meds: stopped after step {saved.step}; checkpoint {saved.tag} is saved, go on with --resume" in output
    assert re.search(r"vLLM engine \d (was lost .*; its prompts go to the 1 left|is away; 1 go on without it)", output)
    assert verify_memory(open_memory(paths.root)).damage == []
    assert read_memory(paths).num_rows == steps[-1]["meds/rows"]


@pytest.mark.timeout(600)
def test_a_lost_policy_rank_ends_the_run_with_a_word_and_the_next_goes_on(
    assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", WANDB_KEY)
    paths = RunPaths(tmp_path / "run")
    # Asynchronous, with more rollouts at once than a step takes: what is left over belongs to the checkpoint.
    options = ["--actor.num_gpus_per_node=2", "--ckpt.save_steps=3", "--train.async_enable"]
    options += ["--rollout.vllm_generate_batch_size=7"]
    first = start(assets, paths.root, *options)
    wait_for_step(StepLog(paths.metrics), 4, first)
    while newest_complete(paths) is None:
        time.sleep(0.1)
    rank = ray_process(first, "RecordingPolicyActor")
    family = psutil.Process(first.pid).children(recursive=True)
    os.kill(rank.pid, signal.SIGKILL)
    output = first.communicate(timeout=120)[0]
    assert first.returncode == 1, output
    lost = (
        rf"meds: policy rank [01] was lost: process {rank.pid} on .*; the same command with --resume goes on after step"
    )
    assert re.search(lost, output), output
    assert "Traceback" not in output
    require_all_gone(family)
    assert [path.name for path in paths.leftovers_folder.iterdir()] == ["global_step3.pt"]

    second = start(assets, paths.root, *options, "--resume")
    output = second.communicate(timeout=300)[0]
    assert second.returncode == 0, output
    assert [step["step"] for step in StepLog(paths.metrics).read()] == list(range(1, STEPS + 1))
    # No prompt came twice in an epoch of four steps, nor more than four in a step: so none was left out.
    visits = {(row["prompt"], row["step"]) for row in read_memory(paths).select(["prompt", "step"]).to_pylist()}
    for epoch in (range(1, 5), range(5, 9)):
        prompts = [prompt for prompt, step in visits if step in epoch]
        assert len(set(prompts)) == len(prompts) > 10
    assert max(sum(step == other for _, other in visits) for step in range(1, STEPS + 1)) <= 4
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
