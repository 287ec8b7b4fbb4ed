"""Minutes of several runs side by side."""

import json
from pathlib import Path

import pytest

from analysis.cost import main
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog


def run_with(root: Path, *seconds: float) -> str:
    root.mkdir()
    log = StepLog(RunPaths(root).metrics)
    for step, one in enumerate(seconds, start=1):
        log.append(step, {"timing/step_total": one})
    return str(root)


def test_minutes_a_step_and_the_ratio_to_the_first_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_with(tmp_path / "dapo", 60, 60, 120), run_with(tmp_path / "meds", 90, 66)]
    assert main([*runs, "--steps", "2", "3", "--json", str(tmp_path / "cost.json")]) == 0
    *_, dapo, meds = capsys.readouterr().out.strip().splitlines()
    assert [cell.strip() for cell in dapo.split("|")[1:-1]] == ["dapo", "1.00", "1.00", "1.33", "1.00"]
    assert [cell.strip() for cell in meds.split("|")[1:-1]] == ["meds", "1.30", "1.30", "", ""]
    minutes = json.loads((tmp_path / "cost.json").read_text())["minutes_a_step"]
    assert minutes == {"dapo": {"2": 1.0, "3": pytest.approx(4 / 3)}, "meds": {"2": 1.3, "3": None}}


def test_a_run_without_times_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StepLog(RunPaths(tmp_path).metrics).append(1, {"reward": 1.0})
    assert main([str(tmp_path)]) == 2
    assert "has no timing/step_total" in capsys.readouterr().err
