"""The runs of a study: a task, a method and a seed each, with its folder and the commands that make it.

runs/STUDY/TASK-METHOD-SEED/            a run's folder (`paths`)
runs/STUDY/TASK-METHOD-SEED.log         what its commands printed
runs/STUDY/evaluations/TASK-SEED/       samples of `meds eval`, labelled METHOD@STEP and start
results/STUDY/                          what is left of the runs, and the report (`study.results`)
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.config.loader import as_word
from meds_openrlhf.config.variants import read_variant
from meds_openrlhf.config.yaml_file import flatten, read_mapping
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.study.study_file import START, Study

Words = list[str]


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    study: Study
    task: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """The run's name: the folder's and the result's."""
        return f"{self.task}-{self.method}-{self.seed}"

    @property
    def paths(self) -> RunPaths:
        """The run's files."""
        return RunPaths(self.study.runs / self.name)

    @property
    def log(self) -> Path:
        """What the run's commands printed."""
        return self.study.runs / f"{self.name}.log"

    @property
    def digest_file(self) -> Path:
        """The digest of the settings with which the run was begun."""
        return self.study.runs / f"{self.name}.digest"

    @property
    def evaluations(self) -> Path:
        """Samples of all methods of this task and seed."""
        return self.study.runs / "evaluations" / f"{self.task}-{self.seed}"

    @property
    def config_file(self) -> Path:
        """The method's configuration for this task."""
        folder = self.study.tasks[self.task].configs or self.study.configs
        return Path(folder) / self.study.methods[self.method].config

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the study sets beyond configuration and variants. Raises ConfigError if two of its parts disagree."""
        study, task, method = self.study, self.study.tasks[self.task], self.study.methods[self.method]
        layers: dict[str, Mapping[str, Any]] = {f"variant {name}": read_variant(name)[1] for name in method.variants}
        layers["settings"] = self._seeded(study.settings)
        layers[f"tasks.{self.task}.settings"] = self._seeded(task.settings)
        layers[f"methods.{self.method}.settings"] = method.settings
        origin: dict[str, str] = {}
        merged: dict[str, Any] = {}
        for name, layer in layers.items():
            for key, value in layer.items():
                if key in merged and merged[key] != value:
                    hint = f"contradicts {merged[key]!r} of {origin[key]}; set it in one place"
                    raise ConfigError(f"{name}.{key}", value, hint)
                merged[key], origin[key] = value, name
        return merged

    def _seeded(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        seed = str(self.seed)
        return {k: v.replace("{seed}", seed) if isinstance(v, str) else v for k, v in settings.items()}

    @property
    def _decided(self) -> dict[str, Any]:
        return {
            "meds.run_dir": str(self.paths.root),
            "meds.max_steps": self.study.steps,
            "train.seed": self.seed,
            "ckpt.save_steps": self.study.evaluation.every,
            "ckpt.max_num": len(self.study.evaluated_steps) + 1,  # one more if the run is interrupted between two
        }

    @property
    def overrides(self) -> Words:
        """What follows CONFIG on the command line of `meds train`."""
        words = [word for name in self.study.methods[self.method].variants for word in ("--variant", name)]
        return words + [f"--{key}={as_word(value)}" for key, value in {**self.settings, **self._decided}.items()]

    def load(self) -> RunConfig:
        """The run's configuration. Raises ConfigError if something in it is wrong."""
        return load_config(self.config_file, self.overrides)

    @cached_property
    def digest(self) -> str:
        """A hash of what makes the run's result; two runs of different settings never pass for one."""
        content: dict[str, Any] = {
            "config": flatten(read_mapping(self.config_file, "CONFIG")),
            "settings": self.settings,
            "decided": {key: value for key, value in self._decided.items() if key != "meds.run_dir"},
            "benchmarks": self.benchmarks,
            "evaluation": {**asdict(self.study.evaluation), "keep_checkpoints": None},
        }
        content["config"].pop("meds.run_dir", None)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def benchmarks(self) -> list[str]:
        """The task's held-out problems, with this seed."""
        return [benchmark.replace("{seed}", str(self.seed)) for benchmark in self.study.tasks[self.task].benchmarks]

    # ── commands ──

    def preparation(self) -> list[Words]:
        """The commands that make the data and the policy of this task and seed."""
        return [shlex.split(line.replace("{seed}", str(self.seed))) for line in self.study.tasks[self.task].prepare]

    def training(self) -> Words:
        """`meds train`, which goes on with what is there."""
        return ["meds", "train", str(self.config_file), *self.overrides, "--resume"]

    def evaluation(self) -> Words:
        """`meds eval` of all checkpoints, and of the policy before training, whose samples all methods share."""
        given = self.study.evaluation
        config = self.load()
        start = f"{START}={config.openrlhf['actor.model_name_or_path']}"
        models = [f"{self.label(step)}={self.paths.root}@{step}" for step in self.study.evaluated_steps]
        words = ["meds", "eval", start, *models, "--benchmarks", *self.benchmarks, "--out", str(self.evaluations)]
        words += ["--n", str(given.n), "--temperature", str(given.temperature), "--top-p", str(given.top_p)]
        words += ["--seed", str(given.seed)]
        words += ["--max-tokens", str(given.max_tokens)] if given.max_tokens is not None else []
        return words + (["--allow-cpu"] if config.meds.allow_cpu else [])

    def agreement(self) -> Words | None:
        """The comparison of clusters with known mistakes; None if the task has none."""
        if not self.study.tasks[self.task].known_mistakes:
            return None
        files = ["--json", str(self.agreement_file), "--figure", str(self.agreement_file.with_suffix(".png"))]
        return ["python", "-m", "analysis.known_mistakes", str(self.paths.root), *files]

    @property
    def agreement_file(self) -> Path:
        """The agreement of the run's clusters with known mistakes."""
        return self.study.runs / "agreement" / f"{self.name}.json"

    def label(self, step: int) -> str:
        """The label of a checkpoint's samples."""
        return START if step == 0 else f"{self.method}@{step}"

    def commands(self) -> list[Words]:
        """All commands of the run, in order."""
        agreement = self.agreement()
        return [*self.preparation(), self.training(), self.evaluation(), *([agreement] if agreement else [])]


def runs_of(study: Study) -> list[StudyRun]:
    """All runs, seed by seed, so that whole pairs come early.

    Raises ConfigError, with nothing started, if a run's settings are wrong or two runs have the same name.
    """
    runs = [
        StudyRun(study, task, method, seed) for seed in study.seeds for task in study.tasks for method in study.methods
    ]
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            raise ConfigError("tasks", run.name, "is the name of two runs; rename a task or a method")
        if run.seed == study.seeds[0]:
            _require_sense(run)
    return runs


def _require_sense(run: StudyRun) -> None:
    """Raise ConfigError for a configuration that cannot be loaded, or that the study would have to ignore."""
    try:
        config = run.load()
    except ConfigError as error:
        raise ConfigError(error.field, error.value, f"{error.hint} (run {run.name})") from None
    if "actor.model_name_or_path" not in config.openrlhf:
        raise ConfigError("actor.model_name_or_path", None, f"is not set; the run {run.name} needs a policy")
    for key in ("ckpt.disable_ds", "ckpt.max_mem"):
        if config.openrlhf.get(key):
            raise ConfigError(key, config.openrlhf[key], f"loses checkpoints that {run.name} evaluates; leave it out")
