"""`meds doctor`, with its training, on this machine."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import MEDS, finished


@pytest.mark.slow
def test_a_sound_machine(tmp_path: Path) -> None:
    ended = finished([*MEDS, "doctor", "--folder", str(tmp_path / "runs"), "--json"])
    assert (ended.returncode, ended.stderr) == (0, "")
    findings = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {finding["result"] for finding in findings} == {"ok"}
    assert [finding["check"] for finding in findings] == ["W&B", "storage", "network", "training", "sharing"]
    for finding in findings[-2:]:
        assert finding["found"].startswith("a tiny policy trained; engines and policy differ by 0.00")
    assert list((tmp_path / "runs").iterdir()) == []
