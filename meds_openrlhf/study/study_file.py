"""The file of a study, studies/NAME.yaml, as typed values. Nothing in it is ignored: what is unknown is refused.

steps: 200                      # of every run
seeds: [1, 2, 3, 4, 5]          # train.seed; {seed} in what a task sets
configs: configs/cpu            # folder of the methods' configurations
settings: {...}                 # of all runs, by dotted key
tasks:      {NAME: {settings, benchmarks, prepare, ...}}     `Task`
methods:    {NAME: {config, variants, settings}}             `Method`
evaluation: {every, n, ...}                                  `Evaluation`
rule:       {primary, statistic, ...}                        `Rule`
claims:     {NAME: {says, method, than, is, ...}}            `Claim`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import build
from meds_openrlhf.config.yaml_file import flatten, read_mapping

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+)*")  # part of folders' names and of labels
PASS_AT = re.compile(r"pass@(\d+)")
NEWLY_SOLVED = "newly-solved"
AGREEMENT = re.compile(r"agreement:([\w-]+)/([\w-]+)")  # a variant of the features and a preset
# What a study decides itself, in every run.
DECIDED = ("meds.run_dir", "meds.max_steps", "train.seed", "ckpt.save_steps", "ckpt.max_num")
START = "start"  # label of the policy before training


def _require(holds: bool, name: str, value: object, hint: str) -> None:
    if not holds:
        raise ConfigError(name, value, hint)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Prompts to train on, held-out problems, and a policy to start from."""

    benchmarks: tuple[str, ...]
    """Held-out problems, as `meds eval --benchmarks` names them; a score is the mean over benchmarks."""
    settings: dict = field(default_factory=dict)
    """What every run of the task sets: its data, its policy, its lengths."""
    configs: str | None = None
    """Folder of the methods' configurations for this task; null: the study's."""
    prepare: tuple[str, ...] = ()
    """Commands that make data and policy of a seed, run once per seed. They must do nothing if all is there."""
    known_mistakes: bool = False
    """Whether `analysis.known_mistakes` can tell what went wrong in a response: the arithmetic task."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a policy is trained: a configuration, and named changes to it."""

    config: str
    """A file in the folder `configs`."""
    variants: tuple[str, ...] = ()
    """``FILE:NAME``, as `meds train --variant` takes them."""
    settings: dict = field(default_factory=dict)
    """What the method sets beyond these."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Which checkpoints are evaluated, and how `meds eval` samples them."""

    every: int
    """Steps from one checkpoint to the next; they are evaluated, and so is the policy before training."""
    after: int = 0
    """Checkpoints up to this step are not evaluated, where only the end of training is judged."""
    n: int
    """Samples of a problem."""
    temperature: float = 1.0
    """Of the samples."""
    top_p: float = 1.0
    """Of the samples."""
    seed: int = 0
    """Of the samples, the same for all runs."""
    max_tokens: int | None = None
    """Of a response; null: as in training."""
    keep_checkpoints: bool = True
    """False: a run's checkpoints are removed as soon as all of them are evaluated. The trained policy stays."""

    def __post_init__(self) -> None:
        _require(self.every >= 1, "evaluation.every", self.every, "is below 1")
        _require(self.after >= 0, "evaluation.after", self.after, "is below 0")
        _require(self.n >= 1, "evaluation.n", self.n, "is below 1")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How differences are judged; `study.verdicts` applies it."""

    primary: tuple[str, ...]
    """The metrics that the study is about, the first above all: columns of runs.csv, panels of the report."""
    last: int
    """pass@k of a run is the mean over so many evaluations, its last."""
    statistic: str
    """Of the paired differences: "mean", or "iqm", the interquartile mean."""
    level: float
    """Of the intervals, e.g. 0.95."""

    def __post_init__(self) -> None:
        _require(bool(self.primary), "rule.primary", [], "names no metric, e.g. pass@1")
        _require(self.last >= 1, "rule.last", self.last, "is below 1")
        _require(self.statistic in ("mean", "iqm"), "rule.statistic", self.statistic, 'is neither "mean" nor "iqm"')
        _require(0.5 <= self.level < 1, "rule.level", self.level, "is not from 0.5 to below 1, e.g. 0.95")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Runs of ``method`` have a higher (or lower) ``metric`` than those of ``than`` with the same task and seed."""

    says: str
    """The claim in words."""
    method: str
    """The method of which something is claimed."""
    than: str
    """The method that it is compared with; may be the same, with another `than_metric`."""
    metric: str
    """pass@K, newly-solved, agreement:VARIANT/PRESET, or a metric of training: its mean over the last quarter."""
    than_metric: str | None = None
    """The metric of `than`; null: `metric`."""
    direction: str = "higher"
    """Whether the metric is claimed to be "higher" or "lower"."""
    matters: float = 0.0
    """The smallest difference that matters, in units of the metric: a claim of less does not hold."""
    tasks: tuple[str, ...] = ()
    """The tasks of the claim; none: all of them."""

    @property
    def metrics(self) -> tuple[str, str]:
        """The metrics of the two methods."""
        return self.metric, self.than_metric or self.metric


@dataclass(frozen=True)
class Study:
    """A study, with its name: the file's."""

    name: str
    path: Path
    steps: int
    seeds: tuple[int, ...]
    configs: str
    runs: Path
    results: Path
    settings: dict[str, Any]
    tasks: dict[str, Task]
    methods: dict[str, Method]
    evaluation: Evaluation
    rule: Rule
    claims: dict[str, Claim]

    @property
    def evaluated_steps(self) -> list[int]:
        """The steps whose checkpoints are evaluated."""
        steps = range(self.evaluation.every, self.steps + 1, self.evaluation.every)
        return [step for step in steps if step > self.evaluation.after]

    def tasks_of(self, claim: Claim) -> tuple[str, ...]:
        """The tasks on which a claim is judged."""
        return claim.tasks or tuple(self.tasks)


@dataclass(frozen=True, kw_only=True)
class _File:
    """The top level of the file."""

    steps: int
    seeds: list
    tasks: dict
    methods: dict
    evaluation: Evaluation
    rule: Rule
    claims: dict = field(default_factory=dict)
    configs: str = "configs"
    settings: dict = field(default_factory=dict)
    runs: str | None = None
    results: str | None = None


def load_study(path: Path, runs: Path | None = None, results: Path | None = None) -> Study:
    """Read a study. ``runs`` and ``results`` replace the folders of the file, by default runs/NAME and results/NAME.

    Raises ConfigError for whatever is unknown, missing or contradictory in it.
    """
    name = path.stem
    _require(bool(NAME.fullmatch(name)), "FILE", str(path), "names folders; use letters, digits and . _ -")
    file = build(_File, read_mapping(path, "FILE"), "study")
    study = Study(
        name=name,
        path=path,
        steps=file.steps,
        seeds=tuple(file.seeds),
        configs=file.configs,
        runs=runs or Path(file.runs or f"runs/{name}"),
        results=results or Path(file.results or f"results/{name}"),
        settings=_settings(file.settings, "settings"),
        tasks=_named(Task, file.tasks, "tasks"),
        methods=_named(Method, file.methods, "methods"),
        evaluation=file.evaluation,
        rule=file.rule,
        claims=_named(Claim, file.claims, "claims"),
    )
    _check(study)
    return study


def _named(cls: type[T], entries: Mapping[Any, Any], name: str) -> dict[str, T]:
    """Each entry of a section as a ``cls``, by its name."""
    _require(bool(entries) or name == "claims", name, None, "is empty; name at least one")
    found = {}
    for key, values in entries.items():
        _require(bool(NAME.fullmatch(str(key))), name, key, "is no plain name; use letters, digits and . _ -")
        _require(isinstance(values, Mapping), f"{name}.{key}", values, "is a section, not a value")
        values = dict(values)
        if "settings" in values:
            values["settings"] = _settings(values["settings"], f"{name}.{key}.settings")
        found[str(key)] = build(cls, values, f"{name}.{key}")
    return found


def _settings(values: object, name: str) -> dict[str, Any]:
    _require(isinstance(values, Mapping), name, values, "is a section, not a value; set the keys below it")
    flat = flatten(values)  # type: ignore[arg-type]
    for key, value in flat.items():
        _require(key not in DECIDED, f"{name}.{key}", value, "is decided by the study itself; leave it out")
        _require("." in key, f"{name}.{key}", value, "is no setting of a run; write it as section.key")
    return flat


def _check(study: Study) -> None:
    """Raise ConfigError if parts of the study do not fit together."""
    for seed in study.seeds:
        _require(type(seed) is int and seed >= 0, "seeds", seed, "is no whole number from 0 up")
    _require(
        len(set(study.seeds)) == len(study.seeds) > 0, "seeds", list(study.seeds), "must be distinct, at least one"
    )
    every, last = study.evaluation.every, study.rule.last
    _require(study.steps >= every, "steps", study.steps, "is below evaluation.every, so nothing would be evaluated")
    _require(study.steps % every == 0, "steps", study.steps, f"is no multiple of evaluation.every, {every}")
    evaluated = len(study.evaluated_steps)
    _require(last <= evaluated, "rule.last", last, f"is more than the {evaluated} evaluations of a run")
    _require(START not in study.methods, f"methods.{START}", None, "is the name of the policy before training")
    for metric in study.rule.primary:
        _check_metric(study, "rule.primary", metric, tuple(study.tasks))
    for name, claim in study.claims.items():
        for key, names in (("method", study.methods), ("than", study.methods)):
            known = f"is no method of the study; those are {', '.join(names)}"
            _require(getattr(claim, key) in names, f"claims.{name}.{key}", getattr(claim, key), known)
        for task in claim.tasks:
            hint = f"is no task of the study; those are {', '.join(study.tasks)}"
            _require(task in study.tasks, f"claims.{name}.tasks", task, hint)
        hint = 'is neither "higher" nor "lower"'
        _require(claim.direction in ("higher", "lower"), f"claims.{name}.direction", claim.direction, hint)
        _require(claim.matters >= 0, f"claims.{name}.matters", claim.matters, "is below 0")
        same = claim.method == claim.than and len(set(claim.metrics)) == 1
        _require(not same, f"claims.{name}.than", claim.than, "is compared with itself; name another, or than_metric")
        for metric in claim.metrics:
            _check_metric(study, f"claims.{name}.metric", metric, study.tasks_of(claim))


def _check_metric(study: Study, name: str, metric: str, tasks: tuple[str, ...]) -> None:
    at = PASS_AT.fullmatch(metric)
    if at is not None:
        hint = f"needs k from 1 to evaluation.n, {study.evaluation.n}"
        _require(1 <= int(at[1]) <= study.evaluation.n, name, metric, hint)
    elif metric.startswith("agreement"):
        _require(bool(AGREEMENT.fullmatch(metric)), name, metric, "is no agreement:VARIANT/PRESET")
        lacking = [task for task in tasks if not study.tasks[task].known_mistakes]
        _require(not lacking, name, metric, f"needs known_mistakes, which {', '.join(lacking)} lacks; name the tasks")
    elif metric != NEWLY_SOLVED:
        hint = "is no metric: pass@K, newly-solved, agreement:VARIANT/PRESET, or one of metrics.jsonl with its /"
        _require("/" in metric or metric == "policy_entropy", name, metric, hint)
