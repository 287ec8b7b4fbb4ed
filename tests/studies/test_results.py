"""What is left of a run: metrics from its files, and files that come back."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.samples import Sample, SampleStore
from meds_openrlhf.step_log import StepLog
from studies import results
from studies.results import collect, read_results, runs_csv, value_of
from studies.study import AT_EQUAL, PASS_AT, Run
from tests.studies.small import result, small, write_results


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Run:
    """A run of three steps whose two problems were sampled twice before training and at step 3, in other orders."""
    tasks = {"sums": {"benchmarks": ["sums.jsonl"], "known_mistakes": True}}
    study = small(Path(), tasks=tasks, steps=3, evaluation={"every": 3, "n": 2}, claims={},
                  rule={"primary": ["pass@1"], "last": 1})  # fmt: skip
    run = study.runs()[0]
    run.paths.root.mkdir(parents=True)
    log = StepLog(run.paths.metrics)
    for step in (1, 2, 3):
        log.append(step, {"meds/accuracy": step / 3, "other": 1.0})
    for label, order, right in (("start", "pq", "q"), ("dapo@3", "qp", "pq")):
        with SampleStore(run.samples(3 * (label != "start")) / "sums.jsonl") as store:
            store.append([Sample(name, i, "", 1, False, "2", name in right) for name in order for i in range(3)])
    return run


def test_a_result_is_collected_from_a_runs_files(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_agreement", lambda _: {"last-half/paper": 0.75})
    found = collect(run, ("abc", True), hours=0.25)
    assert found.right == {"0": {"sums": [0, 2]}, "3": {"sums": [2, 2]}}  # of two samples, not of three
    assert found.curves == {"meds/accuracy": [[1, 0.333333], [2, 0.666667], [3, 1.0]]}
    assert (found.n, found.hours, found.commit, found.dirty) == (2, 0.25, "abc", True)
    assert found.command is not None
    assert found.command.startswith("meds train configs/dapo.yaml --")
    values = {name: found.metric(name, 1) for name in ("pass@1", "newly-solved", "meds/accuracy")}
    assert values == {"pass@1": 1.0, "newly-solved": 1.0, "meds/accuracy": 1.0}
    assert found.metric("pass@1", 2) == found.metric("pass@1/sums", 2) == 0.75
    assert found.metric("agreement:last-half/paper", 1) == 0.75
    assert found.metric("agreement:all/paper", 1) is found.metric("none/such", 1) is None


def test_it_says_what_could_not_be_measured(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = collect(run, (None, None), None)
    assert found.agreement == {}
    assert capsys.readouterr().out.startswith(f"{run.name}: no agreement with known mistakes: ")
    assert found.hours is found.commit is found.dirty is None


def test_a_run_that_ended_early_has_no_result(run: Run) -> None:
    StepLog(run.paths.metrics).cut_after(2)
    with pytest.raises(ConfigError, match="steps=3: differ from the 2 trained"):
        collect(run, (None, None), None)


def test_newly_solved_is_of_problems_without_a_right_sample_before() -> None:
    run = small(Path()).runs()[0]
    assert result(run, 1).metric("newly-solved", 1) == 1.0
    assert result(run, 0).metric("newly-solved", 1) == 0.0
    two = replace(result(run, 0), right={"0": {"a": [0], "b": [4]}, "6": {"a": [4], "b": [0, 4]}})
    assert [two.metric(name, 1) for name in ("pass@1", "pass@1/a", "pass@1/b")] == [0.75, 1.0, 0.5]
    solved = replace(result(run, 4), right={"0": {"b": [1, 2]}, "6": {"b": [0, 0]}})
    assert solved.metric("newly-solved", 1) is None


def test_pass_at_k_is_compared_where_pass_at_1_is_equal() -> None:
    study = small(Path(), tasks={"sums": {"benchmarks": ["a.jsonl"]}}, seeds=[1, 2, 3])
    dapo, meds = study.runs()[:2]
    at_steps = {"0": {"a": [20, 0]}, "2": {"a": [20, 20]}, "4": {"a": [60, 20]}, "6": {"a": [30, 20]}}
    slow = {"0": {"a": [20, 0]}, "2": {"a": [20, 20]}, "4": {"a": [40, 20]}, "6": {"a": [40, 20]}}
    whole, half = (replace(result(dapo, 0), n=100, right=right) for right in (at_steps, slow))
    of_a = [PASS_AT.fullmatch("pass@4/a"), AT_EQUAL.fullmatch("pass@4/a at equal pass@1")]
    assert of_a[0]
    assert of_a[1]
    found = whole.at_equal(of_a[1])
    once = dict(zip(results.EQUAL.round(3), found))
    before, after = (whole.pass_at(step, of_a[0]) for step in (2, 4))
    assert once[0.2] == pytest.approx(before)
    assert once[0.3] == pytest.approx((before + after) / 2)  # on the way up, not on the way down
    assert once[0.4] == pytest.approx(after)
    trained = AT_EQUAL.fullmatch("pass@4/a at equal pass@1 after step 0")
    assert trained
    of_trained = whole.at_equal(trained)
    assert np.array_equal(np.isfinite(of_trained), results.EQUAL.round(3) >= 0.2)  # at step 2 it is 20 %
    assert np.array_equal(of_trained[np.isfinite(of_trained)], found[results.EQUAL.round(3) >= 0.2])
    both = {dapo.key: whole, meds.key: half}
    reached = np.isfinite(half.at_equal(of_a[1]))
    assert results.EQUAL[reached].max() == pytest.approx(0.3, abs=0.006)
    assert value_of(study, both, dapo.key, of_a[1].string) == pytest.approx(found[reached].mean())
    assert value_of(study, {dapo.key: whole}, dapo.key, of_a[1].string) is None  # the other is not finished
    assert value_of(study, both, dapo.key, "pass@4/a") == whole.metric("pass@4/a", study.rule.last)


def test_results_come_back_from_their_files() -> None:
    study = small(Path())
    assert read_results(study) == {}
    run = write_results(study, lambda _: 3, agreement={"all/paper": 0.5})[0]
    assert read_results(study)[run.key] == result(run, 3, agreement={"all/paper": 0.5})
    run.result.write_text(json.dumps({**json.loads(run.result.read_text()), "digest": "of an older version"}))
    assert len(read_results(study)) == 20


def test_runs_csv_has_a_line_per_run() -> None:
    study = small(Path())
    write_results(study, lambda run: run.seed % 5)
    lines = runs_csv(study, read_results(study)).splitlines()
    assert lines[:3] == ["task,method,seed,pass@1,pass@4,hours", "sums,dapo,1,0.25,1,0.5", "sums,meds,1,0.25,1,0.5"]
    assert len(lines) == 21
