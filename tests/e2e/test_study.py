"""A study of two methods, two seeds and three steps: interrupted, killed, gone on with, and reported."""

import csv
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog
from tests.e2e.conftest import MEDS, REPOSITORY
from tests.e2e.runs import processes_of, wait_for_step, wait_until

NAMES = ["sums-dapo-1", "sums-meds-1", "sums-dapo-2", "sums-meds-2"]


@pytest.fixture
def study(assets: Path, tmp_path: Path) -> Path:
    """The file. Its first checkpoint comes after the first step, its last after the third."""
    content = {
        "steps": 3,
        "seeds": [1, 2],
        "configs": str(REPOSITORY / "configs/cpu"),
        "runs": str(tmp_path / "runs"),
        "results": str(tmp_path / "results"),
        "settings": {
            "actor.model_name_or_path": f"{assets}/policy",
            "data.prompt_dataset": f"{assets}/train.jsonl",
            "rollout": {"batch_size": 4, "n_samples_per_prompt": 8, "micro_batch_size": 8},
            "train": {"batch_size": 32, "micro_batch_size": 8, "num_episodes": 2},
            "algo.dynamic_filtering_enable": False,
        },
        "tasks": {"sums": {"benchmarks": [f"{assets}/eval.jsonl"], "known_mistakes": True}},
        "methods": {"dapo": {"config": "dapo.yaml"}, "meds": {"config": "meds.yaml"}},
        "evaluation": {"every": 3, "n": 4, "keep_checkpoints": False},
        "rule": {"primary": ["pass@1"], "last": 1, "statistic": "mean", "level": 0.95},
        "claims": {"better": {"says": "better", "method": "meds", "than": "dapo", "metric": "pass@1"}},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def meds_study(kind: str, file: Path, *more: str) -> subprocess.Popen:
    """`meds study` in the repository, with a Ray session of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        [*MEDS, "study", kind, str(file), *more],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen, seconds: float = 100) -> tuple[int, str]:
    output = process.communicate(timeout=seconds)[0]
    print(output)  # shown when the test fails
    return process.returncode, output


def status(file: Path) -> dict[str, tuple[str, str]]:
    """State and steps of every run."""
    code, output = finish(meds_study("status", file))
    assert code == 0
    return {words[0]: (words[1], words[2]) for words in map(str.split, output.splitlines()[:-1])}


def prompts_of(paths: RunPaths) -> list[set[str]]:
    """The prompts of every step."""
    from meds_openrlhf.tracking.rollout_log import read_rollouts

    return [set(step["prompt"].to_pylist()) for step in read_rollouts(paths)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_study_is_interrupted_killed_gone_on_with_and_reported(study: Path, tmp_path: Path) -> None:
    paths = {name: RunPaths(tmp_path / "runs" / name) for name in NAMES}
    assert set(status(study).values()) == {("missing", "0/3")}

    first = meds_study("run", study)
    wait_for_step(StepLog(paths[NAMES[0]].metrics), 1, first)
    assert status(study)[NAMES[0]][0] == "running"
    os.kill(first.pid, signal.SIGINT)  # as Ctrl-C
    code, output = finish(first)
    assert code == 130
    assert output.endswith("meds: interrupted; run the same command again to go on\n")
    wait_until(lambda: processes_of(tmp_path / "runs") == [])
    state, steps = status(study)[NAMES[0]]
    assert state == "stopped"
    done = int(steps[0])
    assert 1 <= done <= 3
    before = StepLog(paths[NAMES[0]].metrics).read()

    second = meds_study("run", study)
    wait_until(paths[NAMES[1]].config.exists, seconds=600)
    os.kill(second.pid, signal.SIGKILL)
    assert second.wait(60) == -signal.SIGKILL
    wait_until(lambda: processes_of(tmp_path / "runs") == [])
    assert StepLog(paths[NAMES[0]].metrics).read()[:done] == before[:done]
    assert status(study) == {
        **dict.fromkeys(NAMES, ("missing", "0/3")),
        NAMES[0]: ("done", "3/3"),
        NAMES[1]: ("stopped", "0/3"),
    }

    code, output = finish(meds_study("run", study), 1200)
    assert code == 0
    assert output.startswith("small: 1 of 4 runs are done\n")
    assert [name for name in NAMES if f"{name}: done" in output] == NAMES[1:]
    assert set(status(study).values()) == {("done", "3/3")}
    for path in paths.values():
        assert [line["step"] for line in StepLog(path.metrics).read()] == [1, 2, 3]
        assert (path.model / "config.json").exists()
        assert not path.checkpoints.exists()  # evaluated
    # What is equal between the methods of a seed, and not between seeds.
    order = [prompts_of(path) for path in paths.values()]
    assert order[0] == order[1] != order[2] == order[3]
    assert not list(tmp_path.glob("runs/evaluations/sums-1/start-*"))
    assert {entry.name for entry in (tmp_path / "runs/evaluations/sums-1").iterdir() if entry.is_dir()} == {
        "start", "dapo@3", "meds@3",
    }  # fmt: skip

    code, output = finish(meds_study("report", study))
    assert code == 0
    assert output.startswith("better: cannot be decided with 2 seeds\n")
    rows = list(csv.DictReader((tmp_path / "results/runs.csv").open()))
    assert [(row["task"], row["method"], row["seed"]) for row in rows] == [tuple(name.split("-")) for name in NAMES]
    assert all(0 <= float(row["pass@1"]) <= 1 for row in rows)
    report = (tmp_path / "results/report.md").read_text()
    assert ": 4 done." in report
    assert re.search(r"## Agreement of clusters", report)
    assert (tmp_path / "results/report.html").stat().st_size > 20_000
