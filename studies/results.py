"""What is left of a run, results/STUDY/runs/TASK-METHOD-SEED.json: tables and figures are made from it again."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from analysis.known_mistakes import scores_of, wrong_and_explained
from meds_openrlhf.arithmetic.problems import MISTAKES
from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.samples import iterate_samples
from meds_openrlhf.runs.metrics import late_mean
from meds_openrlhf.stats.estimates import pass_at_k
from meds_openrlhf.step_log import StepLog
from studies.study import AT_EQUAL, PASS_AT, Key, Run, Study

EQUAL = np.linspace(0.1, 0.4, 61)  # pass@1 at which pass@k is compared

# Curves of training that are kept, beside those that the study names.
CURVES = (
    *("meds/accuracy", "meds/reward_raw", "meds/reward_shaped", "meds/penalized_share", "meds/penalty_effect"),
    *("policy_entropy", "meds/eigen_ratio_all", "meds/eigen_ratio_window", "meds/eigen_ratio_step"),
    *("rollout/response_length_mean", "dynamic_filtering_pass_rate", "timing/step_total"),
    *("meds/penalty_amplitude", "meds/eigen_ratio_within_window", "rollout/distinct_wrong_answers"),
    *("rollout/unanswered_rate", "rollout/generated_tokens", "rollout/trained_tokens"),
)


@dataclass(frozen=True)
class Result:
    """A finished run. ``commit`` and ``dirty`` (changed since) say which code made it: None outside of a repository.

    ``right[step][benchmark]`` are each problem's right ones among ``n`` samples, step 0 being the policy before
    training. ``curves[metric]`` are [step, value] pairs. ``agreement["VARIANT/PRESET"]`` is the share of pairs of wrong
    responses on which clusters and known mistakes agree, with "/rand" the adjusted Rand index; means over prompts.
    """

    task: str
    method: str
    seed: int
    n: int
    right: dict[str, dict[str, list[int]]]
    curves: dict[str, list[list[float]]]
    agreement: dict[str, float]
    hours: float | None
    command: str | None = None  # of the training; None in results that are older than this field
    commit: str | None = None
    dirty: bool | None = None

    def pass_at(self, step: int, metric: re.Match[str]) -> float:
        """pass@k at a step, of one benchmark or the mean over all, as ``metric``, a match of `PASS_AT`, says."""
        k, benchmark = metric.groups()
        counts = [right for name, right in self.right[str(step)].items() if benchmark in (None, name)]
        return float(np.mean([pass_at_k(self.n, right, int(k)).mean() for right in counts]))

    @property
    def evaluated(self) -> list[int]:
        """The evaluated steps, 0 among them, in order."""
        return sorted(map(int, self.right))

    def at_equal(self, metric: re.Match[str]) -> np.ndarray:
        """pass@k, as ``metric`` says, where pass@1 first is `EQUAL` (61,), linear between evaluations; or NaN."""
        k, benchmark, is_trained = metric.groups()
        at = [PASS_AT.fullmatch(f"pass@{each}" + (f"/{benchmark}" if benchmark else "")) for each in (1, int(k))]
        steps = self.evaluated[1:] if is_trained else self.evaluated
        once, often = (np.array([self.pass_at(step, each) for step in steps]) for each in at if each)
        found = np.full(len(EQUAL), np.nan)
        for end in range(len(once) - 1, 0, -1):  # the first time last, so that it counts
            low, high = once[end - 1], once[end]
            between = (low <= EQUAL) & (high >= EQUAL)
            if high > low:
                found[between] = often[end - 1] + (often[end] - often[end - 1]) * (EQUAL[between] - low) / (high - low)
        return found

    def metric(self, name: str, last: int) -> float | None:
        """A metric as docs/studies.md defines it, pass@k of the ``last`` evaluations; None if the run has none."""
        if at := PASS_AT.fullmatch(name):
            return float(np.mean([self.pass_at(step, at) for step in self.evaluated[-last:]]))
        if name == "newly-solved":
            first, end = (np.concatenate([*self.right[str(self.evaluated[place])].values()]) for place in (0, -1))
            return float((end[first == 0] > 0).mean()) if (first == 0).any() else None
        if name.startswith("agreement:"):
            return self.agreement.get(name.removeprefix("agreement:"))
        values = [value for _, value in self.curves.get(name, [])]
        return late_mean(values) if values else None


def collect(run: Run, commit: tuple[str | None, bool | None], hours: float | None) -> Result:
    """The result of a run that is trained and evaluated. Raises ConfigError if it is not trained to the end."""
    study, lines = run.study, StepLog(run.paths.metrics).read()
    if lines[-1]["step"] != study.steps:
        raise ConfigError("steps", study.steps, f"differ from the {lines[-1]['step']} trained. Change num_episodes.")
    named = {metric for claim in study.claims.values() for _, metric in claim.sides} | {*study.rule.primary}
    points = {name: [line for line in lines if name in line] for name in (*CURVES, *sorted(named - {*CURVES}))}
    right = {str(step): _right(run, step) for step in (0, *study.evaluated_steps)}
    curves = {name: [[at["step"], float(f"{at[name]:.6g}")] for at in found] for name, found in points.items() if found}
    agreement = _agreement(run) if study.tasks[run.task].known_mistakes else {}
    command = shlex.join(run.training())
    return Result(*run.key, study.evaluation.n, right, curves, agreement, hours, command, *commit)


def _right(run: Run, step: int) -> dict[str, list[int]]:
    """The number of right samples of every problem, in the order of the problems' names, by benchmark."""
    found = {}
    for path in sorted(run.samples(step).glob("*.jsonl")):
        right = Counter[str]()
        for sample in iterate_samples(path):
            right[sample.problem] += sample.right and sample.index < run.study.evaluation.n
        found[path.stem] = [right[problem] for problem in sorted(right)]
    return found


def _agreement(run: Run) -> dict[str, float]:
    """The agreement of clusters with known mistakes; nothing, and a line that says why, if there is none."""
    from studies.laboratory_tasks import TASKS  # late: it imports torch, which a report does not need

    try:
        root = run.paths.root
        mistakes = tuple(TASKS[run.task].mistakes) if run.task in TASKS else MISTAKES
        scores = scores_of(root, *wrong_and_explained(root, mistakes))
    except ConfigError as error:
        print(f"{run.name}: no agreement with known mistakes: {error}", flush=True)
        return {}
    found = dict[str, float]()
    for score in scores:
        name = f"{score['variant']}/{score['preset']}"
        found |= {name: score["per_prompt"]["pairwise"], f"{name}/rand": score["per_prompt"]["adjusted_rand"]}
    return {name: round(value, 6) for name, value in found.items()}


def read_results(study: Study) -> dict[Key, Result]:
    """The results of the finished runs, by task, method and seed."""
    known = {entry.name for entry in fields(Result)}
    found = {run.key: json.loads(run.result.read_text()) for run in study.runs() if run.result.is_file()}
    return {key: Result(**{name: value[name] for name in value if name in known}) for key, value in found.items()}


def value_of(study: Study, results: Mapping[Key, Result], key: Key, name: str) -> float | None:
    """A metric of a run, as docs/studies.md defines it; None if it is not finished or has none.

    At equal pass@1 it is the mean over what all methods of the study reach with the run's task and seed.
    """
    if key not in results:
        return None
    at = AT_EQUAL.fullmatch(name)
    if at is None:
        return results[key].metric(name, study.rule.last)
    peers = [(key[0], method, key[2]) for method in study.methods]
    if not all(peer in results for peer in peers):
        return None
    reached = np.isfinite([results[peer].at_equal(at) for peer in peers]).all(axis=0)
    return float(results[key].at_equal(at)[reached].mean()) if reached.any() else None


def runs_csv(study: Study, results: dict[Key, Result]) -> str:
    """A line per finished run."""
    primary = study.rule.primary
    lines = [
        [*key, *(value_of(study, results, key, name) for name in primary), run.hours] for key, run in results.items()
    ]
    table = pd.DataFrame(lines, columns=["task", "method", "seed", *primary, "hours"])
    return str(table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
