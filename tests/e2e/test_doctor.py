"""`meds doctor`, with its training, on this machine."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.ray_head import BIN


@pytest.mark.slow
def test_a_sound_machine(tmp_path: Path) -> None:
    command = [f"{BIN}/meds", "doctor", "--folder", str(tmp_path / "runs"), "--json"]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert finished.returncode == 0, finished.stdout
    findings = [json.loads(line) for line in finished.stdout.splitlines()]
    assert {finding["result"] for finding in findings} == {"ok"}
    assert [finding["check"] for finding in findings] == [
        "W&B",
        "storage",
        "network",
        "training",
        "sharing",
    ]
    for finding in findings[-2:]:
        assert finding["found"].startswith("a tiny policy trained; engines and policy differ by 0.00")
    assert list((tmp_path / "runs").iterdir()) == []
