"""Jobs on a real head: submitted, followed, stopped, killed and gone on with, and where a key ends up."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from tests.e2e.conftest import MEDS, REPOSITORY, command
from tests.e2e.ray_head import BIN, RayHead, ray_head
from tests.e2e.test_resume import processes_of, read_memory, wait_for_step

STEPS = list(range(1, 9))  # 16 prompts, 2 a step, 1 episode
SMALL = ("--rollout.batch_size=2", "--train.batch_size=16", "--train.num_episodes=1", "--ckpt.save_steps=3")
# As long as Weights & Biases wants them, and such that no log holds them by chance.
KEY = f"{'keyofthenodes':x<40}"
KEY_AT_HOME = f"{'keyathome':x<40}"
KEY_IN_A_FILE = f"{'keyinafile':x<40}"

# A job's working folder may bring a script, which then stands in for the training: manners need no model.
STAND_IN = f"""#!/bin/sh
if [ -f script.sh ]; then exec sh ./script.sh "$@"; fi
exec {BIN}/meds "$@"
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    commands = tmp_path_factory.mktemp("commands")
    (commands / "meds").write_text(STAND_IN)
    (commands / "meds").chmod(0o755)
    with ray_head(f"{commands}:{BIN}:{os.environ['PATH']}", WANDB_API_KEY=KEY, WANDB_MODE="offline") as head:
        yield head


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


def finish(process: subprocess.Popen, seconds: float = 120) -> tuple[int, str]:
    output = process.communicate(timeout=seconds)[0]
    print(output[-6000:])  # shown when the test fails
    return process.returncode, output


def jobs(head: RayHead) -> dict[str, dict]:
    found = requests.get(f"{head.address}/api/jobs/", timeout=30).json()
    return {job["submission_id"]: job for job in found if job["submission_id"]}


def overrides(assets: Path, run_dir: Path) -> list[str]:
    """What makes the demo's configuration small, without the command itself."""
    words = command(assets, run_dir, *SMALL)
    return words[words.index("train") + 2 :]


def prompts_of_steps(run_dir: Path) -> dict[bytes, int]:
    return {row["prompt"]: row["step"] for row in read_memory(RunPaths(run_dir)).select(["prompt", "step"]).to_pylist()}


@pytest.fixture(scope="module")
def undisturbed(assets: Path, head: RayHead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a run that `ray job submit` started and nothing disturbed."""
    base = tmp_path_factory.mktemp("undisturbed")
    (base / "run.yaml").write_text((REPOSITORY / "configs/cpu/meds.yaml").read_text())
    words = ["ray", "job", "submit", "--address", head.address, "--working-dir", str(base), "--submission-id", "plain"]
    words += ["--", "meds", "train", "run.yaml", *overrides(assets, base / "run")]
    finished = subprocess.run([BIN / words[0], *words[1:]], capture_output=True, text=True, timeout=400)
    print(finished.stdout[-6000:], finished.stderr[-3000:])
    assert finished.returncode == 0
    assert "Job 'plain' succeeded" in finished.stdout + finished.stderr
    assert jobs(head)["plain"]["status"] == "SUCCEEDED"
    return base / "run"


def test_ray_job_submit_trains_to_the_end(undisturbed: Path) -> None:
    assert [step["step"] for step in StepLog(RunPaths(undisturbed).metrics).read()] == STEPS


def test_a_run_whose_driver_is_killed_goes_on_by_itself(
    undisturbed: Path, assets: Path, head: RayHead, folder: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    log = StepLog(RunPaths(run_dir).metrics)
    process = submit(head, folder, "--name=killed", "--retries=1", *overrides(assets, run_dir))
    wait_for_step(log, 3, process)
    wait_until(RunPaths(run_dir).complete.joinpath("global_step3").exists)
    os.kill(driver_of("killed", run_dir), signal.SIGKILL)
    code, output = finish(process, 300)
    assert code == 0
    assert "meds: killed failed (killed); attempt 2 of 2 goes on with --resume\n" in output
    assert output.endswith("meds: killed-2 succeeded\n")
    assert re.search(r"going on after step [36],", output)  # the training is quick, the kill may be late
    assert output.count("checking the configuration") == 2  # each attempt's log once

    assert [step["step"] for step in log.read()] == STEPS
    ours, theirs = prompts_of_steps(run_dir), prompts_of_steps(undisturbed)
    assert set(ours.values()) <= set(STEPS)
    common = ours.keys() & theirs.keys()
    assert len(common) > 8
    assert {prompt: ours[prompt] for prompt in common} == {prompt: theirs[prompt] for prompt in common}
    wait_until(lambda: processes_of(run_dir) == [])


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
    text = f"trap 'sleep 5; touch {saved}; exit 143' TERM\necho started\nwhile :; do sleep 0.2; done"
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
    assert f"length {len(KEY)}, project math\n" in output  # the nodes' own
    assert set(jobs(head)["keys"]["runtime_env"]["env_vars"]) == {"RAY_JOB_STOP_WAIT_TIME_S", "WANDB_PROJECT"}
    assert files_with_a_key(head.folder) == []


def test_a_training_run_writes_no_key(undisturbed: Path, head: RayHead) -> None:
    assert files_with_a_key(undisturbed.parent, head.folder) == []


def files_with_a_key(*folders: Path) -> list[Path]:
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [
        path for path in files if any(key.encode() in content_of(path) for key in (KEY, KEY_AT_HOME, KEY_IN_A_FILE))
    ]


def content_of(path: Path) -> bytes:
    """Empty where the file, or its process, is gone: Ray tidies up while one looks."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
