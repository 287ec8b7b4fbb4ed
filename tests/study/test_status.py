"""How far each run is, from its files alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.study.execution import sole_process_of
from meds_openrlhf.study.plan import StudyRun, runs_of
from meds_openrlhf.study.results import write_result
from meds_openrlhf.study.status import hours_left, is_trained, status_lines, statuses_of
from meds_openrlhf.tracking.step_log import StepLog
from tests.study.studies import result, study


@pytest.fixture
def runs(tmp_path: Path) -> list[StudyRun]:
    """One is done, one failed, one was stopped after two steps, and one is missing."""
    runs = runs_of(study(tmp_path, seeds=[1]))
    done, failed, stopped, _ = runs
    write_result(done.study, done.name, result(done, 2, notes=["no agreement"]))
    write_result(failed.study, failed.name, replace(result(failed, 0), failed="meds: no room"))
    stopped.paths.root.mkdir(parents=True)
    stopped.paths.config.write_text("")
    for step in (1, 2):
        StepLog(stopped.paths.metrics).append(step, {})
    return runs


def test_every_run_has_a_line(runs: list[StudyRun]) -> None:
    assert status_lines(statuses_of(runs)) == [
        "sums-dapo-1  done     6/6  no agreement",
        "sums-meds-1  failed   0/6  meds: no room",
        "gcd-dapo-1   stopped  2/6",
        "gcd-meds-1   missing  0/6",
        "4 runs: 1 done, 1 failed, 1 stopped, 1 missing; about 1:19:48 left",
    ]


def test_time_left_is_that_of_the_runs_of_each_task(runs: list[StudyRun]) -> None:
    statuses = statuses_of(runs)  # sums-meds-1 is to be made again, gcd-dapo-1 has 4 of 6 steps left, gcd-meds-1 all
    short, long = (replace(result(runs[0], 2), hours=hours) for hours in (1.0, 4.0))
    assert hours_left(statuses, [], 1) is None
    assert hours_left(statuses, [short, replace(long, task="gcd")], 2) == pytest.approx((1 + 4 * 4 / 6 + 4) / 2)
    assert hours_left(statuses, [short, replace(long, hours=None)], 1) == pytest.approx(1 + 4 / 6 + 1)


def test_a_run_is_running_while_its_process_lives(runs: list[StudyRun]) -> None:
    with sole_process_of(runs[0].study):
        (runs[0].study.runs / "now.json").write_text(
            json.dumps({"sums-dapo-1": "evaluating", "gcd-dapo-1": "training"})
        )
        assert status_lines(statuses_of(runs))[0] == "sums-dapo-1  done     6/6  no agreement"  # its result is there
        assert status_lines(statuses_of(runs))[2] == "gcd-dapo-1   running  2/6  training"
        with pytest.raises(ConfigError, match="is being run by another process"), sole_process_of(runs[0].study):
            raise AssertionError("two processes ran it")
    assert status_lines(statuses_of(runs))[2] == "gcd-dapo-1   stopped  2/6"


def test_a_run_is_trained_with_all_steps_and_a_policy(runs: list[StudyRun]) -> None:
    run = runs[2]
    run.paths.model.mkdir()
    (run.paths.model / "tokenizer_config.json").write_text("{}")
    assert not is_trained(run)
    for step in (3, 4, 5, 6):
        StepLog(run.paths.metrics).append(step, {})
    assert is_trained(run)
