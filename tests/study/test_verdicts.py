"""Verdicts by the rule: certain, uncertain, not yet, and never with too few seeds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meds_openrlhf.study.plan import StudyRun, runs_of
from meds_openrlhf.study.results import RunResult
from meds_openrlhf.study.statistics import Interval
from meds_openrlhf.study.study_file import Claim
from meds_openrlhf.study.verdicts import judge, verdict_of
from tests.study.studies import result, study

UNDECIDED = "cannot be decided with 5 seeds"


def claim(**changes: Any) -> Claim:
    return Claim(says="s", method="meds", than="dapo", metric="pass@1", **changes)


@pytest.mark.parametrize(
    ("low", "high", "changes", "verdict"),
    [
        (0.01, 0.03, {}, "holds"),
        (-0.01, 0.03, {}, UNDECIDED),
        (-0.03, -0.01, {}, "does not hold"),
        (0.0, 0.0, {}, UNDECIDED),
        (-0.03, -0.01, {"direction": "lower"}, "holds"),
        (0.01, 0.03, {"direction": "lower"}, "does not hold"),
        (-0.01, 0.015, {"matters": 0.02}, "does not hold"),
        (0.005, 0.015, {"matters": 0.02}, "does not hold"),
        (0.005, 0.03, {"matters": 0.02}, "holds"),
        (-0.015, 0.01, {"matters": 0.02, "direction": "lower"}, "does not hold"),
        (-0.03, 0.01, {"matters": 0.02, "direction": "lower"}, "cannot be decided with 5 seeds"),
        (-0.01, 0.03, {"matters": 0.02, "direction": "lower"}, "does not hold"),
    ],
)
def test_an_interval_gives_a_verdict(low: float, high: float, changes: dict[str, Any], verdict: str) -> None:
    assert verdict_of(Interval((low + high) / 2, low, high), claim(**changes), 5) == verdict


def results_of(runs: list[StudyRun], curve: Any) -> dict[tuple[str, str, int], RunResult]:
    """Results whose metric x/y is ``curve(run)``."""
    return {(run.task, run.method, run.seed): result(run, 2, curves={"x/y": [[1, curve(run)]]}) for run in runs}


@pytest.fixture
def runs(tmp_path: Path) -> list[StudyRun]:
    claims = {"c": {"says": "s", "method": "meds", "than": "dapo", "metric": "x/y"}}
    return runs_of(study(tmp_path, claims=claims))


def test_a_clear_difference_holds_whatever_seeds_and_tasks_do(runs: list[StudyRun]) -> None:
    def score(run: StudyRun) -> float:
        return 10 * (run.task == "gcd") + run.seed + (0.1 + 0.01 * run.seed) * (run.method == "meds")

    verdict = judge(runs[0].study, results_of(runs, score), "c")
    assert verdict.verdict == "holds"
    assert verdict.comparison is not None
    assert verdict.comparison.difference.value == pytest.approx(0.13)
    assert 0.1 < verdict.comparison.difference.low < 0.13 < verdict.comparison.difference.high < 0.16
    assert verdict.comparison.p_value == pytest.approx(2 / 2**10)
    assert verdict.comparison.improvement.value == 0.6  # seeds differ more than methods


def test_nothing_is_judged_before_all_runs_are_there(runs: list[StudyRun]) -> None:
    results = results_of(runs, lambda run: float(run.method == "meds"))
    del results["gcd", "meds", 2]
    verdict = judge(runs[0].study, results, "c")
    assert verdict.verdict == "not judged yet: 1 of 10 pairs are missing"
    assert verdict.comparison is not None
    assert verdict.comparison.pairs.seeds == (1, 3, 4, 5)


def test_a_run_without_the_metric_is_a_missing_pair(runs: list[StudyRun]) -> None:
    results = results_of(runs, lambda run: 1.0)
    results |= {key: result(run, 2) for run in runs if (key := (run.task, run.method, run.seed))[1] == "dapo"}
    verdict = judge(runs[0].study, results, "c")
    assert verdict.verdict == "not judged yet: 10 of 10 pairs are missing"
    assert verdict.comparison is None


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_few_seeds_decide_nothing(tmp_path: Path, seeds: int) -> None:
    claims = {"c": {"says": "s", "method": "meds", "than": "dapo", "metric": "x/y"}}
    runs = runs_of(study(tmp_path, claims=claims, seeds=list(range(seeds))))
    results = results_of(runs, lambda run: float(run.method == "meds") + run.seed / 100)
    verdict = judge(runs[0].study, results, "c")
    assert verdict.verdict == f"cannot be decided with {seeds} seed{'s' * (seeds > 1)}"


def test_equal_methods_are_told_apart_at_the_nominal_rate(runs: list[StudyRun]) -> None:
    """Of 60 studies in which only seeds differ, 2.5 % hold and 2.5 % do not: by chance, a few more."""
    random = np.random.default_rng(0)
    verdicts = [judge(runs[0].study, results_of(runs, lambda _: random.normal()), "c").verdict for _ in range(60)]
    assert verdicts.count("holds") <= 6
    assert verdicts.count("does not hold") <= 6
    assert verdicts.count(UNDECIDED) >= 50


def test_two_metrics_of_one_method_are_compared(runs: list[StudyRun], tmp_path: Path) -> None:
    claims = {"c": {"says": "s", "method": "meds", "than": "meds", "metric": "agreement:a/b",
                    "than_metric": "agreement:c/d", "tasks": ["sums"]}}  # fmt: skip
    found = study(tmp_path, claims=claims)
    results = {
        (run.task, run.method, run.seed): result(run, 2, agreement={"a/b": 0.8 + run.seed / 100, "c/d": 0.5})
        for run in runs
    }
    assert judge(found, results, "c").verdict == "holds"
