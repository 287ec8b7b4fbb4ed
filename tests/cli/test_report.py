"""`meds report`: where it writes, what it prints, and what it refuses in one line."""

from pathlib import Path

from meds_openrlhf.paths import RunPaths
from tests.cli.conftest import Meds
from tests.report.stored_runs import write_memory, write_metrics, write_run


def test_the_path_of_the_page_is_all_that_is_printed(tmp_path: Path, meds: Meds) -> None:
    run = write_run(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
    assert meds.output("report", run.root) == f"{run.report}\n"
    assert run.report.read_text().startswith("<!doctype html>")
    after = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file() and path != run.report}
    assert after == before
    other, output = RunPaths(tmp_path / "other"), tmp_path / "new" / "both.html"
    write_metrics(other, 3)
    run.report.unlink()
    assert meds.output("report", run.root, other.root, "--output", output) == f"{output}\n"
    assert not run.report.exists()
    assert output.stat().st_size > 30_000


def test_what_cannot_be_reported_is_one_line(tmp_path: Path, meds: Meds) -> None:
    assert f"{tmp_path}/none" in meds.refusal("report", tmp_path / "none")
    new = RunPaths(tmp_path / "new")
    write_memory(new, [])
    assert meds.refusal("report", new.root).startswith(f"RUN={new.root}: ")
    run = write_run(tmp_path / "run")
    assert meds.refusal("report", run.root, run.root).startswith(f"RUN={run.root}: ")
    assert f"={tmp_path}: " in meds.refusal("report", run.root, "--output", tmp_path)
    assert list(tmp_path.glob(".*.tmp")) == []
