"""A memory with another number of shards: the same answers, and nothing is lost on the way."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.memory import reshard
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.reshard import rewrite_memory
from meds_openrlhf.memory.snapshot import read_format
from meds_openrlhf.memory.stored import open_memory
from tests.failing import failing
from tests.memory.streams import stream
from tests.memory.written import WrittenMemory, answered_by_one, files_of

BATCHES = stream(8)


def write(root: Path, shards: int = 2) -> WrittenMemory:
    """Five steps, with a snapshot after each."""
    memory = WrittenMemory(root, shards)
    for rows in BATCHES[:5]:
        memory.observe(rows)
        memory.snapshot()
    return memory


@pytest.fixture
def old(tmp_path: Path) -> WrittenMemory:
    return write(tmp_path / "old" / "memory")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list:
    return answered_by_one(tmp_path_factory.mktemp("whole"), BATCHES)


@pytest.mark.parametrize(("before", "after", "step"), [(1, 3, 2), (3, 2, 4), (2, 2, 4)])
def test_another_number_of_shards_gives_the_same_answers(
    tmp_path: Path, expected: list, caplog: pytest.LogCaptureFixture, before: int, after: int, step: int
) -> None:
    memory = write(tmp_path / "memory", before)
    memory.restore("global_step4")  # step 5's was not saved to the end
    memory.stop()
    checkpoints = {f"global_step{n}" for n in range(1, 5)}
    rewrite_memory(memory.paths, replace(memory.format, shards=after), checkpoints=checkpoints)
    if before != after:
        assert {path.stem for path in memory.paths.snapshots.iterdir()} == checkpoints
        assert caplog.text.count("a snapshot is skipped") == 1
    assert read_format(memory.paths) == replace(memory.format, shards=after)
    assert not memory.paths.before.root.exists()
    again = WrittenMemory(memory.root, after)
    again.restore(f"global_step{step}")
    assert sum(shard.stats().rows for shard in again.open) == sum(map(len, BATCHES[:step]))
    assert again.observe(*BATCHES[step:]) == expected[step:]


@pytest.mark.parametrize("interrupted", ["write_rows", "commit_snapshot", "write_format", "rmtree"])
def test_a_rewriting_that_is_interrupted_goes_on_at_the_next_start(
    old: WrittenMemory, expected: list, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    old.stop()
    rows = open_memory(old.root.parent).table()
    with monkeypatch.context() as patch:
        patch.setattr(reshard.shutil if interrupted == "rmtree" else reshard, interrupted, failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            rewrite_memory(old.paths, replace(old.format, shards=3))
    assert old.paths.before.root.exists()
    for folder in (old.root.parent, old.root):
        assert open_memory(folder).table() == rows
    shards = {"write_rows": 2, "write_format": 1}.get(interrupted, 3)  # may be started with another number, as before
    rewrite_memory(old.paths, replace(old.format, shards=shards))
    assert not old.paths.before.root.exists()
    again = WrittenMemory(old.root, shards)
    again.restore("global_step4")
    assert again.observe(*BATCHES[4:]) == expected[4:]


def test_a_memory_that_fits_or_is_damaged_or_in_use_is_not_rewritten(old: WrittenMemory) -> None:
    before = {path: path.stat().st_mtime_ns for path in old.root.rglob("*") if path.is_file()}
    rewrite_memory(old.paths, old.format)  # which fits
    wanted = replace(old.format, shards=1)
    with pytest.raises(MemoryBusyError, match=rf"is in use by process {os.getpid()}"):
        rewrite_memory(old.paths, wanted, lock_seconds=0)
    assert {path: path.stat().st_mtime_ns for path in old.root.rglob("*") if path.is_file()} == before
    old.stop()
    file = files_of(old.root, shard=1)[0]
    file.write_bytes(file.read_bytes()[:-1])
    for _ in range(2):
        with pytest.raises(MemoryCorruptionError, match=rf"{file.name}: is damaged"):
            rewrite_memory(old.paths, wanted)
    assert not old.paths.before.root.exists()


@pytest.mark.parametrize("checkpoints", [None, {"global_step5"}])
def test_a_memory_without_rows_of_a_checkpoint_is_not_rewritten(
    old: WrittenMemory, expected: list, tmp_path: Path, checkpoints: set[str] | None
) -> None:
    """The lost file comes back from a backup, and everything is as before."""
    old.stop()
    lost = files_of(old.root, shard=0)[-1]
    backup = lost.rename(tmp_path / "backup")
    files = {path: path.read_bytes() for path in old.root.rglob("*") if path.is_file()}
    for _ in range(2):
        with pytest.raises(
            MemoryCorruptionError, match=r"rows up to step 5, and its snapshot global_step5 has \d+; re"
        ):
            rewrite_memory(old.paths, replace(old.format, shards=3), checkpoints=checkpoints)
    assert {path: path.read_bytes() for path in old.root.rglob("*") if path.is_file()} == files
    backup.rename(lost)
    rewrite_memory(old.paths, replace(old.format, shards=3), checkpoints=checkpoints)
    again = WrittenMemory(old.root, 3)
    again.restore("global_step5")
    assert again.observe(*BATCHES[5:]) == expected[5:]
