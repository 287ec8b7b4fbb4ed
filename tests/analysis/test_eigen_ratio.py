"""Eigen ratios of runs that logged none; tests/analysis/stored has those of two runs."""

from pathlib import Path

import pytest

from analysis.eigen_ratio import main
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog


def test_a_run_without_eigen_ratios_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StepLog(RunPaths(tmp_path).metrics).append(1, {"reward": 1.0})
    assert main([str(tmp_path / "nowhere")]) == main([str(tmp_path)]) == 2
    missing, plain = capsys.readouterr().err.splitlines()
    assert missing.endswith("nowhere: does not exist. Name the folder of a run that has trained.")
    assert "logged no eigen ratio. A baseline needs a memory of layer logits too" in plain
