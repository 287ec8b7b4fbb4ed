"""Verdicts by the rule: certain, uncertain, not yet, never with too few seeds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meds_openrlhf.stats.paired import bootstrap_interval
from studies.results import Result
from studies.study import Claim, Key, Run, Study
from studies.verdicts import judge, verdict_of
from tests.studies.small import result, small

UNDECIDED = "cannot be decided with 5 seeds"
CLAIM = {"says": "s", "method": "meds", "than": "dapo", "metric": "x/y"}


@pytest.mark.parametrize(
    ("low", "high", "changes", "verdict"),
    [
        (0.01, 0.03, {}, "holds"),
        (-0.01, 0.03, {}, UNDECIDED),
        (-0.03, -0.01, {}, "does not hold"),
        (0.0, 0.0, {}, UNDECIDED),
        (-0.01, 0.015, {"matters": 0.02}, "does not hold"),
        (0.005, 0.015, {"matters": 0.02}, "does not hold"),
        (0.005, 0.03, {"matters": 0.02}, "holds"),
        (-0.03, -0.005, {"matters": 0.02, "direction": "lower"}, "holds"),
        (-0.03, 0.01, {"matters": 0.02, "direction": "lower"}, UNDECIDED),
        (-0.015, 0.03, {"matters": 0.02, "direction": "lower"}, "does not hold"),
    ],
)
def test_an_interval_gives_a_verdict(low: float, high: float, changes: dict[str, Any], verdict: str) -> None:
    claim = Claim(says="s", method="meds", than="dapo", metric="pass@1", **changes)
    assert verdict_of((low, high), claim, 5) == verdict


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return small(tmp_path, claims={"c": CLAIM})


def results_of(study: Study, score: Callable[[Run], float]) -> dict[Key, Result]:
    """Results whose metric x/y is ``score(run)``."""
    return {run.key: result(run, 2, curves={"x/y": [[1, score(run)]]}) for run in study.runs()}


def test_a_clear_difference_holds_whatever_seeds_and_tasks_do(study: Study) -> None:
    def score(run: Run) -> float:
        return 10 * (run.task == "chains") + run.seed + (0.1 + 0.01 * run.seed) * (run.method == "meds")

    verdict, gaps = judge(study, results_of(study, score), study.claims["c"])
    assert verdict == "holds"
    assert gaps == pytest.approx(np.array([[0.11, 0.12, 0.13, 0.14, 0.15]] * 2))
    low, high = bootstrap_interval(gaps)
    assert 0.1 < low < 0.13 < high < 0.16


def test_three_seeds_are_enough_for_students_interval_and_two_are_not(tmp_path: Path) -> None:
    for seeds, verdict in ([1, 2, 3], "holds"), ([1, 2], "cannot be decided with 2 seeds"):
        rule = {"primary": ["pass@1"], "last": 1, "interval": "t"}
        study = small(tmp_path, claims={"c": CLAIM}, seeds=seeds, rule=rule)
        results = results_of(study, lambda run: (0.1 + 0.01 * run.seed) * (run.method == "meds"))
        assert judge(study, results, study.claims["c"])[0] == verdict


def test_nothing_is_judged_before_all_runs_are_there(study: Study) -> None:
    results = results_of(study, lambda run: run.seed * float(run.method == "meds"))
    del results["chains", "meds", 2]
    verdict, gaps = judge(study, results, study.claims["c"])
    assert verdict == "not judged yet: 1 of 10 pairs are missing"
    assert gaps.tolist() == [[1, 3, 4, 5]] * 2


def test_a_run_without_the_metric_is_a_missing_pair(study: Study) -> None:
    results = results_of(study, lambda run: 1.0)
    results |= {run.key: result(run, 2) for run in study.runs() if run.method == "dapo"}
    verdict, gaps = judge(study, results, study.claims["c"])
    assert verdict == "not judged yet: 10 of 10 pairs are missing"
    assert gaps.shape == (2, 0)


@pytest.mark.parametrize("seeds", [1, 4])
def test_few_seeds_decide_nothing(tmp_path: Path, seeds: int) -> None:
    study = small(tmp_path, claims={"c": CLAIM}, seeds=list(range(seeds)))
    results = results_of(study, lambda run: float(run.method == "meds") + run.seed / 100)
    verdict, _ = judge(study, results, study.claims["c"])
    assert verdict == f"cannot be decided with {seeds} seed{'s' * (seeds > 1)}"


def test_two_metrics_of_one_method_are_compared(tmp_path: Path) -> None:
    claims = {"c": {**CLAIM, "than": "meds", "metric": "agreement:a/b", "than_metric": "agreement:c/d",
                    "tasks": ["sums"]}}  # fmt: skip
    study = small(tmp_path, claims=claims)
    results = {
        run.key: result(run, 2, agreement={"a/b": 0.8 + run.seed / 100, "c/d": 0.5})
        for run in study.runs()
        if run.key[:2] == ("sums", "meds")
    }
    assert judge(study, results, study.claims["c"])[0] == "holds"
