"""A snapshot of a run's memory as an artifact."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.tracking.sending.destinations import Destinations
from meds_openrlhf.tracking.sending.wandb_snapshots import artifact_of, manifests_in
from tests.tracking.sending.written_run import WrittenRun


def entries_of(run: WrittenRun, to: Destinations) -> dict[str, Any]:
    (manifest,) = manifests_in(run.paths.memory)
    return dict(artifact_of(manifest, run.paths.memory, to, "run7").manifest.entries)


def test_manifests_come_oldest_first_and_are_told_apart(run: WrittenRun, snapshot: Path) -> None:
    assert [one.name for one in manifests_in(run.paths.memory)] == ["global_step2"]
    (before,) = manifests_in(run.paths.memory)
    older = run.paths.memory.snapshot("global_step9")
    older.write_bytes(snapshot.read_bytes() + b" ")
    os.utime(older, (1, 1))
    first, second = manifests_in(run.paths.memory)
    assert (first.name, second.name) == ("global_step9", "global_step2")
    assert second.digest == before.digest != first.digest


def test_a_run_without_memory_has_none(run: WrittenRun) -> None:
    assert list(manifests_in(run.paths.memory)) == []


def test_archived_rows_are_where_the_archive_is(run: WrittenRun, snapshot: Path) -> None:
    entries = entries_of(run, replace(run.to, archive="s3://bucket/runs/a"))
    assert {name: entry.ref for name, entry in entries.items()} == {
        "snapshots/global_step2.json": None,
        "archive": "s3://bucket/runs/a",
    }


def test_uploaded_rows_are_those_of_the_snapshot(
    run: WrittenRun, snapshot: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    rows = entries_of(run, replace(run.to, snapshots="upload"))["shard-0000/000001.arrow"]
    assert (rows.size, rows.ref) == (5, None)
    assert Path(rows.local_path).read_bytes() == b"rows!"


def test_rows_that_are_gone_are_not_uploaded(run: WrittenRun, snapshot: Path) -> None:
    (run.paths.memory.root / "shard-0000/000001.arrow").unlink()
    with pytest.raises(FileNotFoundError, match="000001"):
        entries_of(run, replace(run.to, snapshots="upload"))
