"""`meds doctor`, with its training, on this machine."""

from pathlib import Path

import pytest

from tests.e2e.conftest import MEDS, finished


@pytest.mark.slow
def test_a_sound_machine(tmp_path: Path) -> None:
    ended = finished([*MEDS, "doctor", "--folder", str(tmp_path / "runs")])
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert {line[:5].strip() for line in lines} == {"ok"}
    assert [line[24:32].strip() for line in lines] == ["W&B", "storage", "GPUs", "network", "training", "sharing"]
    for line in lines[-2:]:
        assert line[34:].startswith("a tiny policy trained; engines and policy differ by 0.00")
    assert list((tmp_path / "runs").iterdir()) == []
