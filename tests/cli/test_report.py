"""`meds report`: where it writes, what it prints, and what it refuses in one line."""

import os
from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.paths import RunPaths
from tests.report.stored_runs import write_memory, write_metrics, write_run


def test_the_path_of_the_page_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
    assert main(["report", str(run.root)]) == 0
    assert capsys.readouterr().out == f"{run.report}\n"
    assert run.report.read_text().startswith("<!doctype html>")
    after = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file() and path != run.report}
    assert after == before
    other, output = RunPaths(tmp_path / "other"), tmp_path / "new" / "both.html"
    write_metrics(other, 3)
    run.report.unlink()
    assert main(["report", str(run.root), str(other.root), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert not run.report.exists()
    assert output.stat().st_size > 30_000


def test_what_cannot_be_reported_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none")]) == 2
    assert f"{tmp_path}/none" in capsys.readouterr().err
    new = RunPaths(tmp_path / "new")
    write_memory(new, [])
    assert main(["report", str(new.root)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"meds: RUN={new.root}: ")
    assert error.count("\n") == 1
    run = write_run(tmp_path / "run")
    assert main(["report", str(run.root), str(run.root)]) == 2
    assert f"RUN={run.root}: " in capsys.readouterr().err
    assert main(["report", str(run.root), "--output", str(tmp_path)]) == 2
    assert f"={tmp_path}: " in capsys.readouterr().err
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []
