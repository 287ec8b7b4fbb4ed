"""Jobs on a real head: submitted, followed, stopped, killed and gone on with, and where a key ends up."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import requests

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from tests.e2e.conftest import MEDS, NODE_KEY, REPOSITORY, command
from tests.e2e.ray_head import BIN, RayHead
from tests.e2e.runs import (
    EPOCH,
    Run,
    processes_of,
    read_memory,
    require_every_prompt_once_an_epoch,
    require_memory_at_work,
    rows_until,
    wait_for_step,
    wait_until,
)

CHECKPOINT = 3  # in the middle of an epoch
KEY_AT_HOME = f"{'keyathome':x<40}"
KEY_IN_A_FILE = f"{'keyinafile':x<40}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a configuration."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "run.yaml").write_text((REPOSITORY / "configs/cpu/meds.yaml").read_text())
    return work


@pytest.fixture
def script(folder: Path, head: RayHead, tmp_path: Path) -> Callable[..., subprocess.Popen]:
    """Submit a job that runs a shell script in place of the training."""
    (folder / "data.jsonl").write_text("{}\n")

    def start(text: str, *options: str, **environment: str) -> subprocess.Popen:
        (folder / "script.sh").write_text(text)
        files = ("--data.prompt_dataset=data.jsonl", "--actor.model_name_or_path=owner/model")
        return submit(head, folder, f"--meds.run_dir={tmp_path}/run", *files, *options, **environment)

    return start


def submit(head: RayHead, folder: Path, *options: str, **environment: str) -> subprocess.Popen:
    """`meds submit`, typed in the working folder."""
    return subprocess.Popen(
        [*MEDS, "submit", "run.yaml", f"--address={head.address}", "--retry-wait=1", *options],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen, seconds: float | None = 120) -> tuple[int, str]:
    output = process.communicate(timeout=seconds)[0]
    print(output[-6000:])  # shown when the test fails
    return process.returncode, output


def jobs(head: RayHead) -> dict[str, dict]:
    found = requests.get(f"{head.address}/api/jobs/", timeout=30).json()
    return {job["submission_id"]: job for job in found if job["submission_id"]}


def overrides(assets: Path, run_dir: Path) -> list[str]:
    """What makes the demo's configuration small, without the command itself."""
    words = command(assets, run_dir, f"--ckpt.save_steps={CHECKPOINT}")
    return words[words.index("train") + 2 :]


def test_a_run_whose_driver_is_killed_goes_on_by_itself(
    assets: Path, head: RayHead, folder: Path, tmp_path: Path
) -> None:
    """Nothing before the checkpoint is lost, and nothing counts twice."""
    paths = RunPaths(tmp_path / "run")
    log = StepLog(paths.metrics)
    # Time enough to look at what the killed run has left.
    process = submit(head, folder, "--name=killed", "--retries=1", "--retry-wait=15", *overrides(assets, paths.root))
    wait_for_step(log, CHECKPOINT + 1, process)
    wait_until(paths.complete.joinpath(f"global_step{CHECKPOINT}").exists)
    os.kill(driver_of("killed", paths.root), signal.SIGKILL)
    wait_until(lambda: processes_of(paths.root) == [process.pid])
    before, metrics_before = read_memory(paths), log.read()  # which nobody writes any more
    assert before.column("step").to_numpy().max() > CHECKPOINT  # rows that the checkpoint does not know
    code, output = finish(process, None)
    assert code == 0
    assert "meds: killed failed (killed); attempt 2 of 2 continues with --resume\n" in output
    assert output.endswith("meds: killed-2 succeeded\n")
    resumed_after = int(re.search(r"going on after step (\d+),", output)[1])
    assert resumed_after in (3, 6)  # the training is quick, the kill may be late
    assert output.count("checking the configuration") == 2  # each attempt's log once

    require_memory_at_work(Run(paths, output))
    assert log.read()[:resumed_after] == metrics_before[:resumed_after]
    after = read_memory(paths)
    assert rows_until(after, resumed_after).equals(rows_until(before, resumed_after))
    require_every_prompt_once_an_epoch(after)
    # The order of the prompts is that of the run that was killed.
    visits = [
        {(row["prompt"], row["step"]) for row in rows.to_pylist() if row["step"] <= 4} for rows in (before, after)
    ]
    steps_of = dict(visits[1])
    assert all(steps_of.get(prompt, step) == step for prompt, step in visits[0])
    assert {path.name for path in paths.complete.iterdir()} == {"global_step3", "global_step6"}
    assert {path.stem for path in paths.memory.snapshots.iterdir()} == {"global_step3", "global_step6"}
    wait_until(lambda: processes_of(paths.root) == [], seconds=120)
    assert files_with_a_key(paths.root, head.folder) == []


def first_steps(rows: pa.Table) -> dict[str, int]:
    """In which step of the first epoch each prompt came."""
    return {row["prompt"]: row["step"] for row in rows_until(rows, EPOCH).to_pylist()}


def driver_of(name: str, run_dir: Path) -> int:
    """The process of `meds train` that a job started; `meds submit` names the folder as well."""
    for process in processes_of(run_dir):
        words = content_of(Path(f"/proc/{process}/cmdline")).decode().split("\0")
        if "train" in words and "submit" not in words:
            return process
    raise AssertionError(f"{name} has no driver")


def test_exit_codes_and_quoting_reach_the_user(script: Callable[..., subprocess.Popen]) -> None:
    words = ("--name=words", "--rollout.stop=it's $HOME; a&b")
    code, output = finish(script('for word; do echo "<$word>"; done; exit 5', *words))
    assert code == 5
    assert "<train>\n<run.yaml>\n" in output
    assert "<--rollout.stop=it's $HOME; a&b>\n" in output
    assert output.endswith("meds: words failed (exit code 5)\n")
    code, output = finish(script("exit 0", *words))
    assert code == 2
    assert output.endswith("meds: --name: 'words' is the name of another job of this cluster; choose a new one\n")


def test_interrupted_the_job_goes_on_and_stopped_it_has_time(
    script: Callable[..., subprocess.Popen], head: RayHead, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    # Longer than the 3 seconds that Ray itself leaves a job that is stopped.
    text = f"trap 'sleep 5; touch {saved}; exit 143' TERM\necho started\nfor i in $(seq 600); do sleep 0.2; done"
    process = script(text, "--name=stoppable", "--retries=3")
    for line in process.stdout:
        if line == "started\n":
            break
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 130
    assert f"`ray job stop --address {head.address} stoppable`" in output
    assert jobs(head)["stoppable"]["status"] == "RUNNING"

    follower = subprocess.run(
        [BIN / "ray", "job", "stop", "--address", head.address, "stoppable"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert follower.returncode == 0, follower.stderr
    assert saved.exists()
    assert jobs(head)["stoppable"]["status"] == "STOPPED"


def test_keys_are_inherited_from_the_nodes_and_written_nowhere(
    script: Callable[..., subprocess.Popen], head: RayHead, folder: Path, tmp_path: Path
) -> None:
    (folder / ".env").write_text(f"WANDB_API_KEY={KEY_IN_A_FILE}\n")
    text = "echo length ${#WANDB_API_KEY}, project $WANDB_PROJECT"
    code, output = finish(script(text, "--name=keys", WANDB_API_KEY=KEY_AT_HOME, WANDB_PROJECT="math"))
    assert code == 0
    assert "keys: not sending: WANDB_API_KEY, set here, because Ray shows a job's environment" in output
    assert f"length {len(NODE_KEY)}, project math\n" in output  # the nodes' own
    assert set(jobs(head)["keys"]["runtime_env"]["env_vars"]) == {"RAY_JOB_STOP_WAIT_TIME_S", "WANDB_PROJECT"}
    assert files_with_a_key(head.folder) == []


def files_with_a_key(*folders: Path) -> list[Path]:
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [
        path
        for path in files
        if any(key.encode() in content_of(path) for key in (NODE_KEY, KEY_AT_HOME, KEY_IN_A_FILE))
    ]


def content_of(path: Path) -> bytes:
    """Empty where the file, or its process, is gone: Ray tidies up while one looks."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
