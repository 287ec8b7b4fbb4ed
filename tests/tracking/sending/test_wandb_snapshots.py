"""A snapshot of a run's memory as an artifact."""

import os
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.tracking.sending.wandb_snapshots import artifact_of, digest_of, read_manifests
from tests.tracking.sending.written_run import WrittenRun


def entries_of(run: WrittenRun) -> dict[str, Any]:
    ((name, manifest),) = read_manifests(run.paths.memory).items()
    return dict(artifact_of(name, manifest, run.paths.memory, run.config.meds, "run7").manifest.entries)


def test_manifests_come_oldest_first_and_are_told_apart(run: WrittenRun, snapshot: Path) -> None:
    before = read_manifests(run.paths.memory)
    assert list(before) == ["global_step2"]
    older = run.paths.memory.snapshot("global_step9")
    older.write_bytes(snapshot.read_bytes() + b" ")
    os.utime(older, (1, 1))
    after = read_manifests(run.paths.memory)
    assert list(after) == ["global_step9", "global_step2"]
    digests = [digest_of(manifest) for manifest in (before["global_step2"], *after.values())]
    assert digests[0] == digests[2] != digests[1]


def test_a_run_without_memory_has_none(run: WrittenRun) -> None:
    assert read_manifests(run.paths.memory) == {}


def test_archived_rows_are_where_the_archive_is_without_its_credentials(run: WrittenRun, snapshot: Path) -> None:
    run.configure("  memory: {archive: 's3://KEY:s3cr3t@bucket/runs/a?secret_key=s3cr3t'}\n")
    assert {name: entry.ref for name, entry in entries_of(run).items()} == {
        "snapshots/global_step2.json": None,
        "archive": "s3://bucket/runs/a",
    }


def test_uploaded_rows_are_those_of_the_snapshot(
    run: WrittenRun, snapshot: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    run.configure("  tracking: {snapshots: upload}\n")
    rows = entries_of(run)["shard-0000/000001.arrow"]
    assert (rows.size, rows.ref) == (5, None)
    assert Path(rows.local_path).read_bytes() == b"rows!"


def test_rows_that_are_gone_are_not_uploaded(run: WrittenRun, snapshot: Path) -> None:
    run.configure("  tracking: {snapshots: upload}\n")
    (run.paths.memory.root / "shard-0000/000001.arrow").unlink()
    with pytest.raises(FileNotFoundError, match="000001"):
        entries_of(run)
