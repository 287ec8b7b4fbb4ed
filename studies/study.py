"""A study's file, studies/NAME.yaml, as typed values, and the runs that it asks for. docs/studies.md describes it.

runs/STUDY/TASK-METHOD-SEED/         a run's folder; beside it .log, what its commands printed
runs/STUDY/evaluations/RUN/          samples of `meds eval` of its checkpoints, labeled METHOD@STEP; in the folder
                                     TASK-start-SEED those of the policy before training, which all methods share
results/STUDY/                       what is left of the runs, and the report
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.config.loader import flatten, read_mapping, read_variant, value_of
from meds_openrlhf.config.schema import Count
from meds_openrlhf.config.section import build
from meds_openrlhf.paths import RunPaths

Key = tuple[str, str, int]  # task, method, seed

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+)*")  # part of folders' names and of labels
PASS_AT = re.compile(r"pass@(\d+)(?:/(\w+))?")  # k, and a benchmark instead of the mean over all
AT_EQUAL = re.compile(r"pass@(\d+)(?:/(\w+))? at equal pass@1( after step 0)?")  # instead of at the same step
OTHER_METRICS = ("newly-solved", "policy_entropy", "dynamic_filtering_pass_rate")  # the others have a slash
INTERRUPTIONS = 5  # of a run, each of which leaves a checkpoint, until one that is to be evaluated is lost
INTERVALS = {"bootstrap": 5, "t": 3, "pooled": 3}  # and the fewest seeds for which each is used
# What a study decides itself, in every run.
DECIDED = ("meds.run_dir", "meds.max_steps", "train.seed", "ckpt.save_steps", "ckpt.max_num")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Problems to train on, held-out ones (``benchmarks``), and a policy; {seed} stands for the run's seed."""

    benchmarks: tuple[str, ...]
    settings: dict = field(default_factory=dict)
    prepare: tuple[str, ...] = ()  # commands that make all this, and do nothing if it is there
    known_mistakes: bool = False  # whether `analysis.known_mistakes` can tell what went wrong in a response


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a policy is trained: a file in the folder `configs`, its variants (FILE:NAME), and further settings."""

    config: str
    variants: tuple[str, ...] = ()
    settings: dict = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Save every ``every`` steps; evaluate those after step ``after`` with ``n`` samples per problem."""

    every: Count
    after: int = 0
    n: Count
    keep_checkpoints: bool = True  # False: only the trained policy stays when they are evaluated


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The metrics that the study is about. pass@k of a run is the mean over its ``last`` evaluations.

    Claims are judged by the ``interval`` "bootstrap" of paired differences, Student's, "t", or Student's with the error
    of all methods, "pooled".
    """

    primary: tuple[str, ...]
    last: int
    interval: Literal["bootstrap", "t", "pooled"] = "bootstrap"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Runs of ``method`` have a higher (or lower) ``metric`` than those of ``than`` with the same task and seed."""

    says: str
    method: str
    than: str
    metric: str
    than_metric: str | None = None  # the metric of `than`, if it is another
    direction: Literal["higher", "lower"] = "higher"
    matters: float = 0.0  # less, in units of the metric, counts as no difference
    tasks: tuple[str, ...] = ()  # none: all of them

    @property
    def sides(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """The two methods, each with its metric."""
        return (self.method, self.metric), (self.than, self.than_metric or self.metric)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study, with its name: the file's. ``tasks``, ``methods`` and ``claims`` are theirs by name."""

    name: str
    steps: int
    seeds: list
    configs: str
    settings: dict = field(default_factory=dict)
    tasks: dict
    methods: dict
    evaluation: Evaluation
    rule: Rule
    claims: dict

    @property
    def evaluated_steps(self) -> list[int]:
        """The steps whose checkpoints are evaluated."""
        every, after = self.evaluation.every, self.evaluation.after
        return [step for step in range(every, self.steps + 1, every) if step > after]

    def runs(self) -> list[Run]:
        """All runs, seed by seed, so that whole pairs come early."""
        return [Run(self, task, method, seed) for seed in self.seeds for task in self.tasks for method in self.methods]


def load_study(path: Path) -> Study:
    """Read a study. Raises ConfigError for what is unknown, missing or contradictory in it."""
    study = build(Study, {**read_mapping(path, "FILE"), "name": path.stem}, "study")
    tasks, methods = _section(Task, study.tasks, "tasks"), _section(Method, study.methods, "methods")
    study = replace(study, tasks=tasks, methods=methods, claims=_section(Claim, study.claims, "claims"))
    _check(study)
    return study


def _section(cls: type, entries: Mapping[Any, Any], name: str) -> dict[str, Any]:
    for key, values in entries.items():
        _require(bool(NAME.fullmatch(str(key))), name, key, "is not a plain name. Use letters, digits and . _ -")
        _require(isinstance(values, Mapping), f"{name}.{key}", values, "must be a section, not a value.")
    return {str(key): build(cls, values, f"{name}.{key}") for key, values in entries.items()}


def _require(holds: bool, name: str, value: object, hint: str) -> None:
    if not holds:
        raise ConfigError(name, value, hint)


def _check(study: Study) -> None:
    """Raise ConfigError if parts of the study do not fit together."""
    seeds, given = study.seeds, study.evaluation
    whole = all(type(seed) is int and seed >= 0 for seed in seeds) and len(set(seeds)) == len(seeds)
    _require(whole, "seeds", seeds, "must be distinct integers of at least 0.")
    _require(study.steps % given.every == 0, "steps", study.steps, "must be a multiple of evaluation.every.")
    count = len(study.evaluated_steps)
    _require(1 <= study.rule.last <= count, "rule.last", study.rule.last, f"must be from 1 to {count} evaluations.")
    fits = study.rule.interval != "pooled" or len(study.tasks) == 1
    _require(fits, "rule.interval", "pooled", "is for one task.")
    names = [run.name for run in study.runs()]
    _require(len({*names}) == len(names) > 0, "tasks", [*study.tasks], "must give runs of distinct names.")
    metrics = [("rule.primary", metric) for metric in study.rule.primary]
    for name, claim in study.claims.items():
        fits, other = study.rule.interval != "pooled" or claim.than_metric in (None, claim.metric), claim.than_metric
        _require(fits, f"claims.{name}.than_metric", other, "has another error. Use an interval that is not pooled.")
        metrics += [(f"claims.{name}.metric", metric) for _, metric in claim.sides]
        named = [("method", claim.method, study.methods), ("than", claim.than, study.methods)]
        for key, value, known in [*named, *(("tasks", task, study.tasks) for task in claim.tasks)]:
            _require(value in known, f"claims.{name}.{key}", value, f"must be one of {', '.join(known)}.")
    for name, metric in metrics:
        at = PASS_AT.fullmatch(metric) or AT_EQUAL.fullmatch(metric)
        stems = [{Path(benchmark).stem for benchmark in task.benchmarks} for task in study.tasks.values()]
        in_all = at is None or at[2] is None or all(at[2] in known for known in stems)
        fits = in_all and 1 <= int(at[1]) <= given.n if at else metric in OTHER_METRICS or "/" in metric
        hint = f"must be pass@1 to pass@{given.n}, the same with /BENCHMARK, newly-solved, agreement:VARIANT/PRESET, "
        hint += "in metrics.jsonl, or pass@K with ` at equal pass@1`, which ` after step 0` may follow."
        _require(fits, name, metric, hint)


class Run:
    """One run of a study: its files and its commands."""

    def __init__(self, study: Study, task: str, method: str, seed: int) -> None:
        self.study, self.task, self.method, self.seed = study, task, method, seed
        self.key: Key = (task, method, seed)
        self.name = f"{task}-{method}-{seed}"
        folder = Path("runs") / study.name
        self.paths = RunPaths(folder / self.name)
        self.log = folder / f"{self.name}.log"
        self.evaluations = folder / "evaluations" / self.name
        self.first_evaluation = folder / "evaluations" / f"{task}-start-{seed}"
        self.result = Path("results") / study.name / "runs" / f"{self.name}.json"

    def config(self) -> RunConfig:
        """The run's configuration. Raises ConfigError if something in it is wrong."""
        _, _, path, *overrides, _ = self.training()
        config, policy = load_config(path, overrides), "actor.model_name_or_path"
        _require(policy in config.openrlhf, policy, None, f"must be set, because the run {self.name} needs a policy.")
        return config

    def preparation(self) -> list[list[str]]:
        """The commands that make the data and the policy of this task and seed."""
        return [shlex.split(self._seeded(line)) for line in self.study.tasks[self.task].prepare]

    def training(self) -> list[str]:
        """`meds train`, which resumes what is there. Raises ConfigError if two parts of the study disagree."""
        study, method = self.study, self.study.methods[self.method]
        kept = len(study.evaluated_steps) + INTERRUPTIONS
        decided = dict(zip(DECIDED, (str(self.paths.root), study.steps, self.seed, study.evaluation.every, kept)))
        variants = [word for name in method.variants for word in ("--variant", name)]
        settings = [f"--{key}={as_word(value)}" for key, value in {**self._settings(), **decided}.items()]
        config = Path(study.configs.replace("{task}", self.task)) / method.config
        return ["meds", "train", str(config), *variants, *settings, "--resume"]

    def _settings(self) -> dict[str, Any]:
        """What the study sets, variants included."""
        task, method = self.study.tasks[self.task], self.study.methods[self.method]
        layers: dict[str, Mapping[str, Any]] = {f"variant {name}": read_variant(name)[1] for name in method.variants}
        layers["settings"] = self.study.settings
        layers |= {f"tasks.{self.task}.settings": task.settings, f"methods.{self.method}.settings": method.settings}
        merged: dict[str, Any] = {}
        for name, layer in layers.items():
            for key, value in flatten(layer).items():
                value = self._seeded(value) if isinstance(value, str) else value
                _require(key not in DECIDED, f"{name}.{key}", value, "is set by the study itself. Leave it out.")
                agrees = merged.setdefault(key, value) == value
                _require(agrees, f"{name}.{key}", value, f"contradicts {merged[key]} elsewhere. Set it in one place.")
        return merged

    def evaluation_before(self) -> list[str]:
        """`meds eval` of the policy before training, whose samples all methods share."""
        return self._evaluation([f"start={self.config().openrlhf['actor.model_name_or_path']}"], self.first_evaluation)

    def evaluation(self) -> list[str]:
        """`meds eval` of the checkpoints."""
        models = [f"{self.method}@{step}={self.paths.root}@{step}" for step in self.study.evaluated_steps]
        return self._evaluation(models, self.evaluations)

    def _evaluation(self, models: list[str], out: Path) -> list[str]:
        benchmarks = [self._seeded(benchmark) for benchmark in self.study.tasks[self.task].benchmarks]
        words = ["meds", "eval", *models, "--benchmarks", *benchmarks, "--out", str(out)]
        return [*words, f"--n={self.study.evaluation.n}", *(["--allow-cpu"] if self.config().meds.allow_cpu else [])]

    def samples(self, step: int) -> Path:
        """The folder with the samples of a checkpoint, or of the policy before training, step 0."""
        return self.evaluations / f"{self.method}@{step}" if step else self.first_evaluation / "start"

    def _seeded(self, text: str) -> str:
        return text.replace("{seed}", str(self.seed))


def as_word(value: Any) -> str:
    """A setting's value as it is typed: ``--key=WORD`` is read as ``value``."""
    if isinstance(value, str):
        return value if value_of(value) == value else json.dumps(value)
    return str(yaml.safe_dump(value, default_flow_style=True, width=math.inf).splitlines()[0])
