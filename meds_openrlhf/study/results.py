"""What is left of a study's runs: small files from which tables and figures are made again without the runs.

results/STUDY/runs.csv                      a line per finished run: task, method, seed, primary metrics, hours
results/STUDY/runs/TASK-METHOD-SEED.json    `RunResult`, or the error line of a run that failed
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.benchmarks import find_benchmarks
from meds_openrlhf.evaluation.estimators import pass_at_k
from meds_openrlhf.evaluation.samples import iterate_samples
from meds_openrlhf.files import write_atomically
from meds_openrlhf.report.history import read_lines
from meds_openrlhf.study.plan import StudyRun
from meds_openrlhf.study.study_file import AGREEMENT, NEWLY_SOLVED, PASS_AT, Study

# Curves of training that are kept, beside those that the study names.
EIGEN_RATIO = "meds/eigen_ratio_window"
CURVES = (
    *("meds/accuracy", "meds/reward_raw", "meds/reward_shaped", "meds/penalized_share", "meds/penalty_effect"),
    "policy_entropy",
    *("meds/eigen_ratio_all", EIGEN_RATIO, "meds/eigen_ratio_step"),
    *("rollout/response_length_mean", "dynamic_filtering_pass_rate", "timing/step_total"),
)
_DIGITS = 6  # significant ones of a curve


@dataclass(frozen=True)
class RunResult:
    """A finished run, or one that ``failed`` with this line; then all the rest is empty.

    ``right[step][benchmark]`` are each problem's right ones among ``n`` samples, step 0 being the policy before
    training. ``curves[metric]`` are [step, value] pairs. ``agreement["VARIANT/PRESET"]`` is the share of pairs of wrong
    responses on which clusters and known mistakes agree, mean over prompts; ``notes`` say what could not be measured.
    """

    task: str
    method: str
    seed: int
    digest: str
    failed: str | None = None
    n: int = 0
    right: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    curves: dict[str, list[list[float]]] = field(default_factory=dict)
    agreement: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hours: float | None = None

    def pass_at(self, step: int, k: int) -> float:
        """pass@k at a step, mean over benchmarks."""
        return float(np.mean([pass_at_k(self.n, counts, k).mean() for counts in self.right[str(step)].values()]))

    @property
    def evaluated(self) -> list[int]:
        """The steps that were evaluated, 0 among them, in order."""
        return sorted(map(int, self.right))


def metric_of(result: RunResult, metric: str, last: int) -> float | None:
    """A metric of a finished run, as `Claim.metric` and `Rule.last` say; None if the run does not have it."""
    if at := PASS_AT.fullmatch(metric):
        return float(np.mean([result.pass_at(step, int(at[1])) for step in result.evaluated[-last:]]))
    if metric == NEWLY_SOLVED:
        return _newly_solved(result)
    if named := AGREEMENT.fullmatch(metric):
        return result.agreement.get(f"{named[1]}/{named[2]}")
    values = [value for _, value in result.curves.get(metric, [])]
    return float(np.mean(values[-max(len(values) // 4, 1) :])) if values else None


def _newly_solved(result: RunResult) -> float | None:
    """Of the problems without a right sample before training, the share with one in the last evaluation."""
    first, end = (np.concatenate([*result.right[str(result.evaluated[place])].values()]) for place in (0, -1))
    unsolved = first == 0
    return float((end[unsolved] > 0).mean()) if unsolved.any() else None


# ── from a run ──


def collect(run: StudyRun, hours: float | None) -> RunResult:
    """The result of a run whose evaluations are complete. Raises ConfigError if they are not."""
    agreement, notes = _agreement(run)
    named = {metric for claim in run.study.claims.values() for metric in claim.metrics}
    curves = _curves(run, [*CURVES, *sorted({*named, *run.study.rule.primary} - set(CURVES))])
    lines = read_lines(run.paths.metrics)
    if not lines or lines[-1]["step"] != run.study.steps:
        done = int(lines[-1]["step"]) if lines else 0
        raise ConfigError("steps", run.study.steps, f"are not in {run.paths.metrics}, which ends at {done}")
    right = {str(step): _right(run, step) for step in (0, *run.study.evaluated_steps)}
    facts: dict[str, Any] = {"task": run.task, "method": run.method, "seed": run.seed, "digest": run.digest}
    facts |= {"n": run.study.evaluation.n, "right": right, "curves": curves}
    return RunResult(**facts, agreement=agreement, notes=notes, hours=None if hours is None else round(hours, 4))


def _right(run: StudyRun, step: int) -> dict[str, list[int]]:
    """The number of right samples of every problem, by benchmark."""
    n = run.study.evaluation.n
    found = {}
    for benchmark in find_benchmarks(run.benchmarks, Path("data")):
        path = run.evaluations / run.label(step) / f"{benchmark.name}.jsonl"
        drawn, right = Counter[str](), Counter[str]()
        for sample in iterate_samples(path) if path.is_file() else ():
            if sample.index < n:
                drawn[sample.problem] += 1
                right[sample.problem] += sample.right
        if any(drawn[problem.id] < n for problem in benchmark.problems):
            raise ConfigError("evaluation.n", n, f"samples of every problem are not in {path}")
        found[benchmark.name] = [right[problem.id] for problem in benchmark.problems]
    return found


def _curves(run: StudyRun, metrics: Iterable[str]) -> dict[str, list[list[float]]]:
    lines = read_lines(run.paths.metrics)
    having = {metric: [line for line in lines if metric in line] for metric in metrics}
    return {
        metric: [[line["step"], float(f"{line[metric]:.{_DIGITS}g}")] for line in found]
        for metric, found in having.items()
        if found
    }


def _agreement(run: StudyRun) -> tuple[dict[str, float], list[str]]:
    """The agreement with known mistakes, and a note if the run has none although its task has."""
    if run.agreement() is None:
        return {}, []
    if not run.agreement_file.is_file():
        return {}, ["no agreement with known mistakes: the log of the run says why"]
    scores = json.loads(run.agreement_file.read_text())["scores"]
    return {f"{score['variant']}/{score['preset']}": round(score["per_prompt"]["pairwise"], 6) for score in scores}, []


# ── on disk ──


def result_file(study: Study, name: str) -> Path:
    """The file with the result of the run ``name``."""
    return study.results / "runs" / f"{name}.json"


def write_result(study: Study, name: str, result: RunResult) -> None:
    """Write a run's result."""
    write_atomically(result_file(study, name), json.dumps(asdict(result), allow_nan=False) + "\n")


def read_result(run: StudyRun) -> RunResult | None:
    """The result of a run; None if there is none. Raises ConfigError if it is of other settings, or damaged."""
    path = result_file(run.study, run.name)
    if not path.is_file():
        return None
    try:
        result = RunResult(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ConfigError("result", str(path), f"cannot be read ({error}); remove it and run the study again") from None
    if result.digest != run.digest:
        if result.failed is not None:
            return None
        hint = (
            f"is of other settings than {run.study.path} has now; give the study a new name, or move its results away"
        )
        raise ConfigError("result", str(path), hint)
    return result


def runs_csv(study: Study, results: Sequence[RunResult]) -> str:
    """A line per finished run."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["task", "method", "seed", *study.rule.primary, "hours"])
    for result in results:
        values = [metric_of(result, metric, study.rule.last) for metric in study.rule.primary]
        shown = ["" if value is None else f"{value:.6g}" for value in (*values, result.hours)]
        writer.writerow([result.task, result.method, result.seed, *shown])
    return file.getvalue()
