"""Snapshots on another file system: Arrow's in-memory one here, as S3 and its like are elsewhere."""

from pathlib import Path

import pytest
from pyarrow import fs

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.archive import Archive, archive_snapshot
from meds_openrlhf.memory.errors import MemoryCorruptionError, MemoryLostError
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot
from meds_openrlhf.paths import MemoryPaths
from tests.memory.streams import LAYERS, stream
from tests.memory.test_shard import as_lists, make_shard, run

FORMAT = MemoryFormat(2, LAYERS, {})


@pytest.fixture(params=["memory", "local"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    if request.param == "memory":
        return Archive(fs._MockFileSystem(), "bucket/run")
    return Archive.at(str(tmp_path / "archive"))


def names(archive: Archive, folder: str) -> set[str]:
    return {Path(path).name for path in archive._files(folder)}


def test_a_run_resumes_where_none_of_its_files_are(tmp_path: Path, archive: Archive) -> None:
    batches = stream(6)
    shard = make_shard(tmp_path / "old node")
    expected = run(shard, batches[:3])
    shard._log.close_segment()
    archive.store(MemoryPaths(tmp_path / "old node"), shard.snapshot())
    archive.commit("global_step3", Snapshot(FORMAT, "", shard.snapshot()))
    expected += run(shard, batches[3:], first=4)

    found = archive.read("global_step3")
    assert found is not None
    archive.fetch(MemoryPaths(tmp_path / "new node"), found.segments)
    other = make_shard(tmp_path / "new node")
    other.restore(found.segments)
    assert as_lists(run(other, batches[3:], first=4)) == as_lists(expected[3:])


def test_files_left_behind_on_a_node_give_way(tmp_path: Path) -> None:
    """The run went on elsewhere; what this node has of the same name is of steps that never were."""
    batches, uri = stream(6), str(tmp_path / "archive")
    here, there = make_shard(tmp_path / "here"), make_shard(tmp_path / "there")
    run(here, batches[:2])
    here.archive(uri)
    moment = here.snapshot()
    run(here, batches[2:], first=3)  # lost with the node
    here.close()
    there.restore(moment, uri)
    expected = run(there, batches[4:], first=3)
    there.archive(uri)
    with pytest.raises(MemoryLostError):
        there.archive(uri, acknowledged=10**6)
    back = make_shard(tmp_path / "here")
    back.restore(there.snapshot(), uri)
    assert as_lists([back.observe(4, batches[5])]) == as_lists(expected[1:])
    assert back.stats().rows == there.stats().rows


def test_a_new_run_is_not_let_into_another_ones_archive(tmp_path: Path, archive: Archive) -> None:
    archive.require_usable(fresh=True)
    archive.commit("global_step3", Snapshot(FORMAT, "", []))
    archive.require_usable(fresh=False)
    with pytest.raises(ConfigError, match="holds another run's snapshots"):
        archive.require_usable(fresh=True)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"meds.memory.archive: .* cannot be written to"):
        Archive.at(str(tmp_path / "file" / "archive")).require_usable(fresh=True)


def test_an_archive_that_is_there_may_still_not_be_writable(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.require_usable(fresh=False)
    monkeypatch.setattr(archive, "_write", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    with pytest.raises(ConfigError, match=r"cannot be written to \(.*Read-only file system\)"):
        archive.require_usable(fresh=False)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("s3://KEY:s3/cret@bucket/a", "'s3://bucket/a' is no file system's address (Cannot parse URI: 's3://bucket/a'"),
        ("s3://KEY:s3cret@bucket/a?bad=s3cret", "'s3://bucket/a' is no file system's address (Unexpected query"),
        ("nonsense", "'nonsense' is no file system's address (URI has empty scheme: 'nonsense'); use s3://bucket"),
    ],
)
def test_a_wrong_address_is_one_line_without_credentials(uri: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Archive.at(uri)
    assert str(refused.value).startswith(f"meds.memory.archive: {problem}")
    assert "cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_branch_is_archived_once(tmp_path: Path) -> None:
    uri, paths, shard = str(tmp_path / "archive"), MemoryPaths(tmp_path / "m"), make_shard(tmp_path / "m")
    run(shard, stream(2))
    commit_snapshot(paths, "branch", Snapshot(FORMAT, "", shard.snapshot()))
    for _ in range(2):
        archive_snapshot(uri, paths, "branch")
        run(shard, stream(1), first=3)
    found = Archive.at(uri).read("branch")
    assert found is not None
    other = make_shard(tmp_path / "elsewhere")
    other.restore(found.segments, uri)
    assert other.stats().rows == found.rows == sum(map(len, stream(2)))


def test_nothing_is_stored_twice_and_only_what_a_snapshot_names_stays(tmp_path: Path, archive: Archive) -> None:
    paths, shard = MemoryPaths(tmp_path / "m"), make_shard(tmp_path / "m")
    writes = []
    real = archive._write
    archive._write = lambda path, content: (writes.append(path), real(path, content))  # type: ignore[method-assign]
    for step, rows in enumerate(stream(3), 1):
        shard.observe(step, rows)
        shard._log.close_segment()
        archive.store(paths, shard.snapshot())
        archive.commit(f"global_step{step}", Snapshot(FORMAT, "", shard.snapshot()))
    assert sum("segments" in path for path in writes) == 3
    archive.prune({"global_step2"})
    assert names(archive, "snapshots") == {"global_step2.json"}
    assert len(names(archive, "segments")) == 2
    archive.prune(set())
    assert names(archive, "segments") == set()


def test_a_memory_without_rows_has_no_segments(archive: Archive) -> None:
    archive.commit("global_step1", Snapshot(FORMAT, "", []))
    archive.prune({"global_step1"})
    assert names(archive, "snapshots") == {"global_step1.json"}


def test_another_number_of_shards_fetches_what_it_needs(tmp_path: Path) -> None:
    uri, shard = str(tmp_path / "archive"), make_shard(tmp_path / "old")
    run(shard, stream(3))
    shard.archive(uri)
    moment = shard.snapshot()
    new = [make_shard(tmp_path / f"node {number}", shard=number, shards=2) for number in range(2)]
    for other in new:
        other.restore(moment, uri)
    assert sum(other.stats().rows for other in new) == shard.stats().rows


def test_what_is_not_there_is_said(tmp_path: Path, archive: Archive) -> None:
    shard = make_shard(tmp_path / "m")
    run(shard, stream(1))
    assert archive.read("global_step9") is None
    with pytest.raises(MemoryCorruptionError, match=r"shard-0000-000000-.*\.arrow: a snapshot names it, but"):
        archive.fetch(MemoryPaths(tmp_path / "elsewhere"), shard.snapshot())
    with pytest.raises(ValueError, match="snapshot name"):
        archive.read("../../etc/passwd")
    with pytest.raises(ConfigError, match=r"meds.memory.archive: 'no://where' is no file system's address"):
        Archive.at("no://where")
