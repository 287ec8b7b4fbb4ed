"""Runs that fail are recorded, and the others go on; whole runs are in tests/e2e."""

from datetime import timedelta
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.study.execution import run_study
from meds_openrlhf.study.plan import StudyRun, runs_of
from meds_openrlhf.study.results import read_result, runs_csv, write_result
from tests.study.studies import result, study

FAILS = "python -c \"import sys; print('line one'); sys.exit('no data for {seed}')\""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StudyRun]:
    """Three runs whose preparation fails, so that no Ray cluster is asked for anything; the first is done."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("meds_openrlhf.study.execution.end_children_with_this_process", lambda: None)
    tasks = {"a": {"benchmarks": ["x.jsonl"], "prepare": [FAILS]}}
    runs = runs_of(study(tmp_path, tasks=tasks, seeds=[1, 2], methods={"dapo": {"config": "dapo.yaml"}}, claims={}))
    write_result(runs[0].study, runs[0].name, result(runs[0], 2))
    return runs


def test_a_failed_run_has_its_last_line_and_is_tried_again(runs: list[StudyRun]) -> None:
    said: list[str] = []
    for _ in range(2):
        assert run_study(runs, runs, said.append) == 1
    found = read_result(runs[1])
    assert found is not None
    assert found.failed == "no data for 2"
    assert said[0] == "small: 1 of 2 runs are done"
    assert said[1].startswith("[2/2] a-dapo-2: preparing; ")
    assert said[2] == "[2/2] a-dapo-2: failed: no data for 2"
    assert said[3].startswith("a-dapo-2: failed; ")
    assert len(said) == 8
    assert runs[1].log.read_text().count("line one\nno data for 2\n") == 2
    done = read_result(runs[0])
    assert done is not None
    assert (runs[0].study.results / "runs.csv").read_text() == runs_csv(runs[0].study, [done])


def test_places_and_the_time_left_are_those_of_the_chosen_runs(runs: list[StudyRun]) -> None:
    said: list[str] = []
    assert run_study(runs[1:], runs, said.append) == 1
    hours = result(runs[0], 2).hours
    assert hours is not None
    assert said[:2] == [
        "small: 0 of 1 runs are done",
        f"[1/1] a-dapo-2: preparing; {timedelta(hours=hours)} left in all",
    ]


def test_what_is_done_needs_nothing(runs: list[StudyRun]) -> None:
    write_result(runs[1].study, runs[1].name, result(runs[1], 2))
    said: list[str] = []
    assert run_study(runs, runs, said.append) == 0
    assert said == ["small: 2 of 2 runs are done"]


def test_a_run_that_was_begun_with_other_settings_is_not_gone_on_with(runs: list[StudyRun]) -> None:
    runs[1].paths.root.mkdir(parents=True)
    runs[1].paths.config.write_text("")
    runs[1].digest_file.write_text("other")
    with pytest.raises(ConfigError, match="was begun with other settings"):
        run_study(runs, runs, lambda _: None)


def test_runs_made_at_a_time_share_their_preparation_and_end_all_if_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("meds_openrlhf.study.execution.end_children_with_this_process", lambda: None)
    count = f"python -c \"import time; open('{tmp_path}/count', 'a').write('{{seed}}'); time.sleep(0.5)\""
    tasks = {"a": {"benchmarks": ["x.jsonl"], "prepare": [count]}}
    methods = {name: {"config": "dapo.yaml"} for name in ("dapo", "meds", "more")}
    runs = runs_of(study(tmp_path, tasks=tasks, seeds=[1, 2], methods=methods, claims={}))
    fails = ["python", "-c", "import sys; sys.exit('no room')"]
    monkeypatch.setattr(StudyRun, "training", lambda run: fails)
    said: list[str] = []
    assert run_study(runs, runs, said.append, parallel=2) == 1
    assert (tmp_path / "count").read_text() == "12"
    assert [line for line in said if line.endswith("failed: no room")] == [
        f"[{number}/6] {run.name}: failed: no room" for number, run in enumerate(runs, 1)
    ]
