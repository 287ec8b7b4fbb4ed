"""A study of two methods, two seeds and three steps: interrupted, gone on with, and reported."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import read_rollouts
from meds_openrlhf.step_log import StepLog
from tests.e2e.conftest import REPOSITORY, environment, finish, start
from tests.e2e.runs import processes_of, wait_for_step
from tests.processes import wait_until

NAMES = ["sums-dapo-1", "sums-meds-1", "sums-dapo-2", "sums-meds-2"]


@pytest.fixture
def study(assets: Path, tmp_path: Path) -> Path:
    """The file. Its first checkpoint comes after the first step, its last after the third."""
    content = {
        "steps": 3,
        "seeds": [1, 2],
        "configs": str(REPOSITORY / "configs/cpu"),
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
        "rule": {"primary": ["pass@1"], "last": 1},
        "claims": {"better": {"says": "better", "method": "meds", "than": "dapo", "metric": "pass@1"}},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def script_of(name: str, file: Path) -> subprocess.Popen:
    """A script of studies/ in the folder of the file, where no Ray cluster is known."""
    words = [sys.executable, "-m", f"studies.{name}", str(file)]
    return start(words, cwd=file.parent, env=environment(PYTHONPATH=str(REPOSITORY)))


def prompts_of(paths: RunPaths) -> list[set[str]]:
    """The prompts of every step."""
    return [set(step["prompt"].to_pylist()) for step in read_rollouts(paths)]


@pytest.mark.slow
def test_a_study_is_interrupted_gone_on_with_and_reported(study: Path, tmp_path: Path) -> None:
    paths = {name: RunPaths(tmp_path / "runs/small" / name) for name in NAMES}
    first = script_of("run", study)
    wait_for_step(StepLog(paths[NAMES[0]].metrics), 1, first)
    os.kill(first.pid, signal.SIGINT)  # as Ctrl-C
    code, output = finish(first)
    lines = output.splitlines()
    assert code == 130
    assert lines[0] == "small: 4 runs to make"
    assert lines[-1] == "interrupted"
    assert not [line for line in lines if "failed" in line or "done" in line]
    wait_until(lambda: processes_of(tmp_path / "runs") == [])
    before = StepLog(paths[NAMES[0]].metrics).read()
    assert 1 <= len(before) <= 3
    assert list((paths[NAMES[0]].complete).iterdir()) or paths[NAMES[0]].model_complete.exists()

    code, output = finish(script_of("run", study), 1500)
    assert code == 0
    assert {line for line in output.splitlines() if "done" in line} == {f"{name}: done" for name in NAMES}
    assert StepLog(paths[NAMES[0]].metrics).read()[: len(before)] == before
    for path in paths.values():
        assert [line["step"] for line in StepLog(path.metrics).read()] == [1, 2, 3]
        assert (path.model / "config.json").exists()
        assert not path.checkpoints.exists()  # evaluated
    # What is equal between the methods of a seed, and not between seeds.
    order = [prompts_of(path) for path in paths.values()]
    assert order[0] == order[1] != order[2] == order[3]
    evaluations = tmp_path / "runs/small/evaluations"
    evaluated = {f"{folder.parent.name} {folder.name}" for folder in evaluations.glob("*/*") if folder.is_dir()}
    firsts = {f"sums-start-{seed} start" for seed in (1, 2)}
    assert evaluated == firsts | {f"{name} {name.split('-')[1]}@3" for name in NAMES}
    assert finish(script_of("run", study)) == (0, "small: 0 runs to make\n")

    assert finish(script_of("report", study)) == (0, "better: cannot be decided with 2 seeds\n")
    rows = list(csv.DictReader((tmp_path / "results/small/runs.csv").open()))
    assert [(row["task"], row["method"], row["seed"]) for row in rows] == [tuple(name.split("-")) for name in NAMES]
    assert all(0 <= float(row["pass@1"]) <= 1 for row in rows)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()
    results = [json.loads((tmp_path / f"results/small/runs/{name}.json").read_text()) for name in NAMES]
    assert {result["commit"] for result in results} == {head or None}
    assert all(result["agreement"] for result in results)
    assert "| better " in (tmp_path / "results/small/report.md").read_text()
    assert (tmp_path / "results/small/figures/pass-at-k.png").stat().st_size > 5_000
