"""ray_jobs/submit.sh on a real head: a job is followed, loses its driver, resumes, is stopped; where keys end up."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.step_log import StepLog
from tests.e2e.conftest import BIN, NODE_KEY, REPOSITORY, TOKEN, RayHead, command, environment, finish, start
from tests.e2e.runs import (
    STEPS,
    Run,
    processes_of,
    read_memory,
    require_every_prompt_once_an_epoch,
    require_memory_at_work,
    rows_until,
    wait_for_step,
)
from tests.processes import wait_until

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


def at_home(head: RayHead, **variables: str) -> dict[str, str]:
    """Where the user types, beside a cluster."""
    variables = {"PATH": f"{BIN}:{os.environ['PATH']}", "RAY_API_SERVER_ADDRESS": head.address, **TOKEN, **variables}
    return environment(**variables)


def submit(head: RayHead, folder: Path, *words: str, **variables: str) -> subprocess.Popen:
    """`ray_jobs/submit.sh`, typed in the working folder."""
    return start([str(REPOSITORY / "ray_jobs/submit.sh"), *words], cwd=folder, env=at_home(head, **variables))


@pytest.fixture
def script(folder: Path, head: RayHead) -> Callable[..., subprocess.Popen]:
    """Submit a job that runs a shell script in place of the training."""

    def submit_script(text: str, *words: str, **variables: str) -> subprocess.Popen:
        (folder / "script.sh").write_text(text)
        return submit(head, folder, *words, **variables)

    return submit_script


def job_that_started(process: subprocess.Popen) -> str:
    """The name of the job, once its script has printed "started"."""
    read = ""
    while not read.endswith("\nstarted\n"):
        line = process.stdout.readline()
        assert line, read
        read += line
    return re.search(r"Job '(\S+)' submitted", read)[1]


def jobs(head: RayHead) -> dict[str, dict]:
    page = f"{head.address}/api/jobs/"
    assert requests.get(page, timeout=30).status_code == 401  # without the token
    found = requests.get(page, timeout=30, headers={"Authorization": f"Bearer {TOKEN['RAY_AUTH_TOKEN']}"}).json()
    return {job["submission_id"]: job for job in found if job["submission_id"]}


def overrides(assets: Path, run_dir: Path) -> list[str]:
    """What makes the demo's configuration small, without the command itself."""
    words = command(assets, run_dir, f"--ckpt.save_steps={CHECKPOINT}")
    return words[words.index("train") + 2 :]


def test_a_run_whose_driver_is_killed_goes_on_by_itself(
    assets: Path, head: RayHead, folder: Path, tmp_path: Path
) -> None:
    """Nothing before the checkpoint is lost, and nothing counts twice. Asynchronous, ZeRO-3 on two ranks."""
    paths = RunPaths(tmp_path / "run")
    log = StepLog(paths.metrics)
    options = ["--train.async_enable", "--ds.zero_stage=3", "--actor.num_gpus_per_node=2"]
    # Samples packed into batches of so many tokens, also where mini-batches are whole prompts.
    options += ["--train.dynamic_batch_enable", "--train.max_tokens_per_gpu=400", "--rollout.max_tokens_per_gpu=600"]
    process = submit(head, folder, "--tries", "2", "run.yaml", *overrides(assets, paths.root), *options)
    wait_for_step(log, CHECKPOINT + 1, process)
    wait_until(paths.complete.joinpath(f"global_step{CHECKPOINT}").exists)
    os.kill(driver_of(paths.root), signal.SIGKILL)
    os.kill(process.pid, signal.SIGSTOP)  # the script's second try has to wait
    wait_until(lambda: processes_of(paths.root) == [process.pid])
    before, metrics_before = read_memory(paths), log.read()  # which nobody writes any more
    os.kill(process.pid, signal.SIGCONT)
    assert before.column("step").to_numpy().max() > CHECKPOINT  # rows that the checkpoint does not know
    code, output = finish(process, None)
    assert code == 0
    # -9, or 128 + 9 where the shell of the head stays between Ray and the command.
    (said,) = re.findall(r"^submit.sh: (.*)", output, re.MULTILINE)
    assert re.fullmatch(rf"{name_of_first(output)} failed with exit code (-9|137) \(try 1 of 2\)", said)
    resumed_after = int(re.search(r"resuming after step (\d+),", output)[1])
    assert resumed_after in (3, 6)  # the training is quick, the kill may be late
    first_try, _, second_try = output.partition("submit.sh: ")
    assert all("checking the configuration" in followed for followed in (first_try, second_try))

    require_memory_at_work(Run(paths, output))
    assert [line["step"] for line in log.read()] == list(range(1, STEPS + 1))
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
    wait_until(lambda: processes_of(paths.root) == [])
    assert files_with_a_key(paths.root, head.folder) == []


def name_of_first(output: str) -> str:
    return re.search(r"Job '(\S+-1)' submitted", output)[1]


def driver_of(run_dir: Path) -> int:
    """The process of `meds train` that the job started; the processes of submit.sh name the folder as well."""
    for process in processes_of(run_dir):
        words = content_of(Path(f"/proc/{process}/cmdline")).decode().split("\0")
        if "train" in words and not any(word.endswith(("submit.sh", "/ray")) for word in words):
            return process
    raise AssertionError(f"no driver of {run_dir}")


def test_interrupted_the_job_goes_on_and_stopped_it_has_time(
    script: Callable[..., subprocess.Popen], head: RayHead, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    # Longer than the 3 seconds that Ray itself leaves a job that is stopped.
    text = f"trap 'sleep 5; touch {saved}; exit 143' TERM\necho started\nfor i in $(seq 6000); do sleep 0.2; done"
    process = script(text, "run.yaml")
    job = job_that_started(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, output = finish(process)
    assert code == 130
    assert f"`ray job stop {job}` stops it\n" in output
    assert f"Status for job '{job}': RUNNING" in ray_job(head, "status", job).stdout  # which the script waits for
    unknown = ray_job(head, "status", "none")
    assert (unknown.returncode, "does not exist" in unknown.stderr) == (1, True)
    assert ray_job(head, "stop", job).returncode == 0
    assert saved.exists()
    assert jobs(head)[job]["status"] == "STOPPED"

    saved.unlink()
    process = script(text, "--tries", "3", "run.yaml")
    job = job_that_started(process)
    assert ray_job(head, "stop", job).returncode == 0
    code, output = finish(process)
    assert code == 143
    assert saved.exists()
    assert f"{job[:-2]}-2" not in jobs(head)


def ray_job(head: RayHead, *words: str) -> subprocess.CompletedProcess:
    line = [BIN / "ray", "job", *words]
    return subprocess.run(line, env=at_home(head), capture_output=True, text=True, timeout=120)


def test_submission_passes_words_and_keeps_keys_on_the_nodes(
    script: Callable[..., subprocess.Popen], head: RayHead, folder: Path
) -> None:
    (folder / ".env").write_text(f"WANDB_API_KEY={KEY_IN_A_FILE}\n")
    (folder / "math.env").write_text("WANDB_PROJECT=it's math\n")
    text = (
        'printf "<%s>\\n" "$@"\n'
        "echo length ${#WANDB_API_KEY}, project $WANDB_PROJECT, files $(ls -A)\n"
        "echo ended with exit code 7; exit 2"
    )
    options = ("--tries", "3", "--env-file", "math.env", "run.yaml", "--rollout.stop=it's$HOME;a&b\\c")
    code, output = finish(script(text, *options, WANDB_API_KEY=KEY_AT_HOME))
    assert code == 2
    assert "<train>\n<run.yaml>\n<--rollout.stop=it's$HOME;a&b\\c>\n" in output
    assert f"length {len(NODE_KEY)}, project it's math, files run.yaml script.sh\n" in output  # the nodes' own key
    job = name_of_first(output)
    assert output.endswith(f"submit.sh: {job} failed with exit code 2 (try 1 of 3)\n")
    caches = {"VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
    assert set(jobs(head)[job]["runtime_env"]["env_vars"]) == {"RAY_JOB_STOP_WAIT_TIME_S", "WANDB_PROJECT", *caches}
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
