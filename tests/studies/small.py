"""A small study: its file, and results as runs would leave them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from studies.results import Result
from studies.study import Run, Study, load_study

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
        "configs": "configs",
        "tasks": {
            "sums": {
                "settings": {"actor.model_name_or_path": "policy-{seed}"},
                "benchmarks": ["sums.jsonl"],
                "known_mistakes": True,
            },
            "chains": {"benchmarks": ["chains.jsonl"]},
        },
        "methods": {
            "dapo": {"config": "dapo.yaml"},
            "meds": {"config": "dapo.yaml", "variants": ["variants.yaml:harder"], "settings": {"actor.adam.lr": 1e-6}},
        },
        "evaluation": {"every": 2, "n": 4},
        "rule": {"primary": ["pass@1", "pass@4"], "last": 2},
        "claims": {"better": {"says": "MEDS is better", "method": "meds", "than": "dapo", "metric": "pass@1"}},
        **changes,
    }


def write_study(folder: Path, **changes: Any) -> Path:
    """The file small.yaml in the working directory ``folder``, and the configurations that it names."""
    (folder / "configs").mkdir(exist_ok=True)
    (folder / "configs" / "dapo.yaml").write_text(CONFIG)
    (folder / "variants.yaml").write_text("harder:\n  meds.penalty.beta: 0.3\n")
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content(**changes), sort_keys=False))
    return path


def small(folder: Path, **changes: Any) -> Study:
    """The loaded study."""
    return load_study(write_study(folder, **changes))


def result(run: Run, right: int, **more: Any) -> Result:
    """Of four problems with four samples, each has so many right ones after training; before, the first has one."""
    counts = {str(step): {"problems": [right] * 4 if step else [1, 0, 0, 0]} for step in (0, 2, 4, 6)}
    curve = [[step, 0.5 + 0.01 * step] for step in range(1, 7)]
    given = {"curves": {"meds/eigen_ratio_window": curve}, "agreement": {}, "hours": 0.5, **more}
    return Result(run.task, run.method, run.seed, **{"n": 4, "right": counts, **given})


def write_results(study: Study, right: Callable[[Run], int], **more: Any) -> list[Run]:
    """Results of all runs, in the working directory; returns the runs."""
    for run in study.runs():
        run.result.parent.mkdir(parents=True, exist_ok=True)
        run.result.write_text(json.dumps(asdict(result(run, right(run), **more))))
    return study.runs()
