"""The token of a Slurm job, in its run folder."""

import os
import stat
from pathlib import Path

import pytest

from meds_openrlhf.runtime.ray_token import main, write_token


def test_a_token_replaces_what_is_there_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "token").symlink_to(precious)
    before = os.umask(0)
    try:
        path = write_token(tmp_path / "token")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert len(path.read_text()) == 64
    assert write_token(path).read_text() != path.with_name("precious").read_text() == "mine"


def test_a_job_gets_its_own_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    (tmp_path / "c.yaml").write_text("meds: {run_dir: elsewhere}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--resume", "c.yaml", "--meds.run_dir", "runs/mine"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/runs/mine/.ray-token-77\n"
    assert (tmp_path / "runs/mine/.ray-token-77").is_file()
    assert main(["none.yaml"]) == 2
    assert capsys.readouterr().err.startswith("meds: CONFIG=none.yaml: is not a readable YAML file")
    assert main(["c.yaml", "--meds.run_dir", "c.yaml/run"]) == 2
    assert "meds.run_dir: cannot be written to" in capsys.readouterr().err
