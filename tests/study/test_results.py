"""What is left of a run: metrics from its files, and files that say if they are of other settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.evaluation.samples import Sample, SampleStore
from meds_openrlhf.study.plan import StudyRun, runs_of
from meds_openrlhf.study.results import collect, metric_of, read_result, result_file, runs_csv, write_result
from meds_openrlhf.tracking.step_log import StepLog
from tests.study.studies import result, study, write_results


@pytest.fixture
def run(tmp_path: Path) -> StudyRun:
    """A run of three steps whose two problems were sampled twice before training and at step 3."""
    problems = tmp_path / "sums.jsonl"
    rows = [{"id": name, "prompt": "1+1", "answer": "2"} for name in ("p", "q")]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = {"sums": {"benchmarks": [str(problems)], "known_mistakes": True}}
    given = study(tmp_path, tasks=tasks, steps=3, evaluation={"every": 3, "n": 2}, claims={},
                  rule={"primary": ["pass@1"], "last": 1, "statistic": "iqm", "level": 0.9})  # fmt: skip
    run = runs_of(given)[0]
    run.paths.root.mkdir(parents=True)
    log = StepLog(run.paths.metrics)
    for step in (1, 2, 3):
        log.append(step, {"meds/accuracy": step / 3, "other": 1.0})
    for label, right in (("start", ("q",)), ("dapo@3", ("p", "q"))):
        with SampleStore(run.evaluations / label / "sums.jsonl") as store:
            store.append([Sample(one, i, "", 1, False, "2", one in right) for one in ("p", "q") for i in range(2)])
    return run


def test_a_result_is_collected_from_a_runs_files(run: StudyRun) -> None:
    run.agreement_file.parent.mkdir()
    scores = [{"variant": "last-half", "preset": "paper", "per_prompt": {"pairwise": 0.75}}]
    run.agreement_file.write_text(json.dumps({"scores": scores}))
    found = collect(run, hours=0.25)
    assert found.right == {"0": {"sums": [0, 2]}, "3": {"sums": [2, 2]}}
    assert found.curves == {"meds/accuracy": [[1, 0.333333], [2, 0.666667], [3, 1.0]]}
    assert (found.n, found.hours, found.digest) == (2, 0.25, run.digest)
    values = {name: metric_of(found, name, 1) for name in ("pass@1", "newly-solved", "meds/accuracy")}
    assert values == {"pass@1": 1.0, "newly-solved": 1.0, "meds/accuracy": 1.0}
    assert metric_of(found, "pass@1", 2) == 0.75
    assert metric_of(found, "agreement:last-half/paper", 1) == 0.75
    assert metric_of(found, "agreement:all/paper", 1) is metric_of(found, "none/such", 1) is None


def test_a_result_says_what_could_not_be_measured(run: StudyRun) -> None:
    found = collect(run, None)
    assert found.notes == ["no agreement with known mistakes: the log of the run says why"]
    assert found.hours is None


def test_incomplete_samples_and_steps_make_no_result(run: StudyRun) -> None:
    samples = run.evaluations / "dapo@3" / "sums.jsonl"
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ConfigError, match="samples of every problem are not in"):
        collect(run, None)
    StepLog(run.paths.metrics).cut_after(2)
    with pytest.raises(ConfigError, match="which ends at 2"):
        collect(run, None)


def test_newly_solved_is_of_problems_without_a_right_sample_before(tmp_path: Path) -> None:
    run = runs_of(study(tmp_path))[0]
    assert metric_of(result(run, 1), "newly-solved", 1) == 1.0
    assert metric_of(result(run, 0), "newly-solved", 1) == 0.0
    solved = replace(result(run, 4), right={"0": {"b": [1, 2]}, "6": {"b": [0, 0]}})
    assert metric_of(solved, "newly-solved", 1) is None


def test_results_come_back_from_their_files(tmp_path: Path) -> None:
    run = runs_of(study(tmp_path))[0]
    assert read_result(run) is None
    written = result(run, 3, agreement={"all/paper": 0.5}, notes=["a note"])
    write_result(run.study, run.name, written)
    assert read_result(run) == written


def test_results_of_other_settings_are_refused_and_damaged_ones_too(tmp_path: Path) -> None:
    write_results(study(tmp_path), lambda _: 2)
    changed = runs_of(study(tmp_path, settings={"actor.max_norm": 0.5}))[0]
    with pytest.raises(ConfigError, match="is of other settings than"):
        read_result(changed)
    result_file(changed.study, changed.name).write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_result(changed)


def test_a_failure_of_other_settings_counts_no_more(tmp_path: Path) -> None:
    run = runs_of(study(tmp_path))[0]
    write_result(run.study, run.name, replace(result(run, 0), failed="no room", digest="other"))
    assert read_result(run) is None


def test_runs_csv_has_a_line_per_run(tmp_path: Path) -> None:
    runs = write_results(study(tmp_path), lambda run: run.seed % 5)
    results = [found for run in runs if (found := read_result(run)) is not None]
    lines = runs_csv(runs[0].study, results).splitlines()
    assert lines[:3] == ["task,method,seed,pass@1,pass@4,hours", "sums,dapo,1,0.25,1,0.5", "sums,meds,1,0.25,1,0.5"]
    assert len(lines) == 21
