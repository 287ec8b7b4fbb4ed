"""Eigen ratios of runs, as logged."""

from pathlib import Path

import pytest

from analysis.eigen_ratio import main, table_of
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.runs.metrics import logged_curves
from meds_openrlhf.tracking.step_log import StepLog


def written(run: Path, logged: list[dict[str, float]]) -> Path:
    log = StepLog(RunPaths(run).metrics)
    for step, metrics in enumerate(logged, start=1):
        log.append(step, metrics)
    return run


def test_the_late_mean_is_of_the_last_quarter(tmp_path: Path) -> None:
    run = written(tmp_path / "one", [{"meds/eigen_ratio_all": step / 10} for step in range(1, 9)])
    curves = logged_curves([run], ["meds/eigen_ratio_all"], "none")
    assert table_of(curves).iloc[0].tolist() == ["one", "all", 8, "0.1000", "0.1000", "0.8000", "0.7500"]


def test_a_run_without_eigen_ratios_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == main([str(written(tmp_path, [{"reward": 1.0}]))]) == 2
    missing, plain = capsys.readouterr().err.splitlines()
    assert missing.endswith("nowhere: does not exist. Name the folder of a run that has trained.")
    assert "logged no eigen ratio. A baseline needs a memory of layer logits too" in plain
