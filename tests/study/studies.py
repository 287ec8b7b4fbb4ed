"""Small studies: a file, and results as runs would leave them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from meds_openrlhf.study.plan import StudyRun, runs_of
from meds_openrlhf.study.results import RunResult, write_result
from meds_openrlhf.study.study_file import Study, load_study

CONFIG = """\
meds: {run_dir: runs/any, allow_cpu: true, penalty.alpha: 0}
actor.model_name_or_path: policy
data.prompt_dataset: train.jsonl
"""


def content(**changes: Any) -> dict[str, Any]:
    """A file's content: two tasks, two methods, five seeds, one claim."""
    return {
        "steps": 6,
        "seeds": [1, 2, 3, 4, 5],
        "tasks": {
            "sums": {
                "settings": {"actor.model_name_or_path": "policy-{seed}"},
                "benchmarks": ["sums.jsonl"],
                "known_mistakes": True,
            },
            "gcd": {"benchmarks": ["gcd.jsonl"]},
        },
        "methods": {
            "dapo": {"config": "dapo.yaml"},
            "meds": {"config": "dapo.yaml", "variants": ["variants.yaml:harder"], "settings": {"actor.adam.lr": 1e-6}},
        },
        "evaluation": {"every": 2, "n": 4},
        "rule": {"primary": ["pass@1", "pass@4"], "last": 2, "statistic": "mean", "level": 0.95},
        "claims": {
            "better": {"says": "MEDS is better", "method": "meds", "than": "dapo", "metric": "pass@1"},
        },
        **changes,
    }


def write_study(folder: Path, **changes: Any) -> Path:
    """The file, and the configurations that it names."""
    configs = folder / "configs"
    configs.mkdir(parents=True, exist_ok=True)
    (configs / "dapo.yaml").write_text(CONFIG)
    (folder / "variants.yaml").write_text("harder:\n  meds.penalty.beta: 0.3\n")
    given = content(configs=str(configs), runs=str(folder / "runs"), results=str(folder / "results"), **changes)
    for method in given["methods"].values():
        if "variants" in method:
            method["variants"] = [one.replace("variants.yaml", f"{folder}/variants.yaml") for one in method["variants"]]
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(given, sort_keys=False))
    return path


def study(folder: Path, **changes: Any) -> Study:
    """The loaded study."""
    return load_study(write_study(folder, **changes))


def result(run: StudyRun, right: int, **more: Any) -> RunResult:
    """Of four problems with four samples, each has so many right ones after training; before, the first has one."""
    counts = {str(step): {"problems": [min(max(right, 0), 4)] * 4 if step else [1, 0, 0, 0]} for step in (0, 2, 4, 6)}
    curve = [[step, 0.5 + 0.01 * step] for step in range(1, 7)]
    given = {"n": 4, "right": counts, "curves": {"meds/eigen_ratio_window": curve}, "hours": 0.5, **more}
    return RunResult(run.task, run.method, run.seed, run.digest, **given)


def write_results(study: Study, right: Callable[[StudyRun], int], **more: Any) -> list[StudyRun]:
    """Results of all runs; returns the runs."""
    runs = runs_of(study)
    for run in runs:
        write_result(study, run.name, result(run, right(run), **more))
    return runs
