"""ray_jobs/submit.sh with a `ray` that notes what it is asked and plays back how jobs end."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.ray_jobs.test_slurm import notes, write_command

SCRIPT = Path(__file__).parents[2] / "ray_jobs/submit.sh"
# `ray job status` answers the lines of status.txt in turn; those that begin with ERROR as failures.
RAY = """#!/bin/bash
case $2 in
    submit)
        echo "$*" >>submit.txt
        stat -c %a "$9" >mode.txt && cat "$9" >runtime_env.yaml && echo "$9" >path.txt
        echo "${*: -1}" | grep -q refused && exit 1
        exit 0 ;;
    logs) echo "$4" >>logs.txt ;;
    status)
        answer=$(head -n 1 status.txt) && sed -i 1d status.txt
        echo "${answer//JOB/$3}"
        [[ $answer != ERROR* ]] ;;
esac
"""
SUCCEEDED, STOPPED, RUNNING = "Job 'JOB' succeeded", "Job 'JOB' was stopped", "Status for job 'JOB': RUNNING"


USAGE = ("", "--tries", "--help")  # without a configuration
TOKEN = "s3cret" * 6
ENVIRONMENTS = {
    **{name: f"{name}={TOKEN}" for name in ("DB_PASS", "MYSQL_PWD", "WANDB_KEY2", "SLACK_WEBHOOK", "MY_APIKEY")},
    **{"hub": f"SETTING=hf_{TOKEN}", "query": f"URL=http://host/?token={TOKEN}", "header": f"H=Bearer {TOKEN}"},
}
WORDS = {
    f"--logger.wandb.key={TOKEN}": "logger.wandb.key",
    f"--logger.wandb.key {TOKEN}": "logger.wandb.key",
    f"--reward.remote_url=http://me:{TOKEN}@host": "reward.remote_url",
    f"--x http://host/?access_token={TOKEN}": "x",
    f"--x=hf_{TOKEN}": "x",
    f"--a.password={TOKEN}": "a.password",
    "--logger.wandb.key c2VjcmV0c2VjcmV0cw==": "logger.wandb.key",
}


def failed(code: int) -> str:
    return f"Status message: Job entrypoint command failed with exit code {code}, last available logs: exit code 5"


def submit(folder: Path, *words: str, ends: tuple[str, ...] = (SUCCEEDED,)) -> subprocess.CompletedProcess:
    write_command(folder, "ray", RAY)
    write_command(folder, "sleep", '#!/bin/sh\necho "$1" >>sleep.txt\n')
    (folder / "run.yaml").touch()
    (folder / "status.txt").write_text("".join(f"{end}\n" for end in ends))
    path = f"{folder}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "RAY_API_SERVER_ADDRESS": "http://head:8265"}
    command = ["bash", SCRIPT, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        *[(words, "usage: submit.sh [--working-dir FOLDER] [--env-file FILE] [--tries N] ") for words in USAGE],
        ("--retries 3 run.yaml", "--retries: not an option; settings of the run follow CONFIG"),
        ("--tries 0 run.yaml", "--tries=0: must be a whole number of at least 1"),
        ("--env-file none run.yaml", "--env-file=none: cannot be read"),
        ("other.yaml", "CONFIG=other.yaml: not a file in the working folder ., of which the job gets a copy"),
        ("run.yaml '--x=a b'", "--x=a b: Ray passes on no spaces or double quotes; set it in CONFIG"),
        ("--env-file key run.yaml", "--env-file=key: AWS_ACCESS_KEY_ID is a key, which Ray would show to"),
        *[(f"--env-file {name} run.yaml", f"--env-file={name}: ") for name in ENVIRONMENTS],
        *[(f"run.yaml {words}", f"{name} is a key, which Ray would show to everyone") for words, name in WORDS.items()],
        ("--env-file token run.yaml", "--env-file=token: HF_TOKEN is a key, which Ray would show to everyone"),
        ("--env-file user run.yaml", "--env-file=user: URL is a key, which Ray would show to everyone; set it"),
        ("--env-file word run.yaml", "--env-file=word: a line is not NAME=VALUE"),
    ],
)
def test_mistakes_take_one_line_and_submit_nothing(tmp_path: Path, words: str, line: str) -> None:
    texts = {"key": "A=1\nAWS_ACCESS_KEY_ID=s3cret", "token": "HF_TOKEN=s3cret\n", "word": "s3cret\n"}
    for name, text in {**texts, **ENVIRONMENTS, "user": "URL=https://me:s3cret@host\n"}.items():
        (tmp_path / name).write_text(text)
    finished = submit(tmp_path, *shlex.split(words))
    assert finished.returncode == 2
    assert finished.stderr.removeprefix("submit.sh: ").startswith(line)
    assert finished.stderr.count("\n") == 1 or words in USAGE
    assert "s3cret" not in finished.stderr
    assert "set -euo" not in finished.stderr
    assert notes(tmp_path, "submit") == []


def test_ordinary_settings_are_submitted(tmp_path: Path) -> None:
    words = "--data.input_key question --data.label_key answer --train.max_tokens_per_gpu 16384 --a A=1 --b x= y=="
    (tmp_path / "set").write_text("MAX_TOKENS=5\nHF_HOME=/shared\n")
    assert submit(tmp_path, "--env-file", "set", "run.yaml", *words.split()).returncode == 0
    assert len(notes(tmp_path, "submit")) == 1


def test_the_environment_is_in_a_private_file_that_is_removed(tmp_path: Path) -> None:
    (tmp_path / "set").write_text('# of this run\n\nWANDB_PROJECT=it\'s: "math" # 1\nTOKENIZERS_PARALLELISM=false')
    finished = submit(tmp_path, "--env-file", "set", "run.yaml")
    assert finished.returncode == 0
    sent = yaml.safe_load((tmp_path / "runtime_env.yaml").read_text())
    ours = yaml.safe_load((SCRIPT.parent / "runtime_env.yaml").read_text())
    given = {"WANDB_PROJECT": 'it\'s: "math" # 1', "TOKENIZERS_PARALLELISM": "false"}
    assert sent == {"excludes": ours["excludes"], "env_vars": {**ours["env_vars"], **given}}
    assert notes(tmp_path, "mode") == ["600"]
    assert not Path(*notes(tmp_path, "path")).exists()
    assert "math" not in (tmp_path / "submit.txt").read_text()


def test_after_a_failure_the_job_is_submitted_again_with_resume(tmp_path: Path) -> None:
    finished = submit(tmp_path, "--tries", "3", "run.yaml", "--a=it's", ends=(failed(-9), "Job failed", SUCCEEDED))
    assert finished.returncode == 0
    first, second, third = notes(tmp_path, "submit")
    assert first.endswith(r"-- meds train 'run.yaml' '--a=it'\''s'")
    assert second.endswith(r"-- meds train 'run.yaml' '--a=it'\''s' --resume")
    assert third.endswith(" --resume")
    assert not third.endswith(" --resume --resume")
    jobs = notes(tmp_path, "logs")
    assert [job.rpartition("-")[2] for job in jobs] == ["1", "2", "3"]
    assert finished.stderr.splitlines() == [
        f"submit.sh: {jobs[0]} failed with exit code -9 (try 1 of 3)",
        f"submit.sh: {jobs[1]} failed with exit code 1 (try 2 of 3)",
    ]
    assert notes(tmp_path, "sleep") == ["15", "15"]


@pytest.mark.parametrize(
    ("end", "code", "tries"),
    [(failed(2), 2, 1), (failed(127), 127, 1), (STOPPED, 143, 1), (failed(-9), 137, 3), (failed(1), 1, 3)],
)
def test_no_further_try_where_none_helps(tmp_path: Path, end: str, code: int, tries: int) -> None:
    finished = submit(tmp_path, "--tries", "3", "run.yaml", ends=(end,) * 3)
    assert finished.returncode == code
    assert len(notes(tmp_path, "submit")) == tries
    (tmp_path / "submit.txt").unlink()
    assert submit(tmp_path, "--tries", "3", "run.yaml", "--refused").returncode == 2  # by Ray
    assert len(notes(tmp_path, "submit")) == 1


def test_a_lost_connection_ends_the_watching_alone_and_a_lost_job_is_a_failure(tmp_path: Path) -> None:
    lost = "ERROR Job JOB does not exist"
    ends = (RUNNING, "ERROR no route", "ERROR no route", RUNNING, lost, SUCCEEDED)
    finished = submit(tmp_path, "--tries", "2", "run.yaml", ends=ends)
    assert finished.returncode == 0
    assert len(notes(tmp_path, "submit")) == 2
    assert [job.rpartition("-")[2] for job in notes(tmp_path, "logs")] == ["1", "1", "1", "2"]
    assert notes(tmp_path, "sleep") == ["10", "10", "15"]
