"""A memory that is copied: the same answers in the copy, and neither disturbs the other."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory import branch
from meds_openrlhf.memory.branch import make_branch, rewrite_memory
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.snapshot import BRANCH_SNAPSHOT, read_format
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import MemoryPaths
from tests.failing import failing
from tests.memory.streams import stream
from tests.memory.written import FORMAT, WrittenMemory, answered_by_one, files_of

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


@pytest.mark.parametrize(("step", "shards"), [(2, 2), (2, 3), (4, 1)])
def test_a_branch_goes_on_from_a_snapshot(
    old: WrittenMemory, tmp_path: Path, expected: list, step: int, shards: int
) -> None:
    paths, wanted = MemoryPaths(tmp_path / "new" / "memory"), replace(FORMAT, shards=shards)
    for _ in range(2):  # a second time, as after a crash in the middle of the first
        made = make_branch(old.paths.snapshot(f"global_step{step}"), paths, wanted)
    assert made == replace(wanted, step_offset=step)
    new = WrittenMemory(paths.root, shards)
    new.restore(BRANCH_SNAPSHOT)
    assert new.observe(*BATCHES[step:7]) == expected[step:7]
    assert old.observe(*BATCHES[5:]) == expected[5:]


def test_what_cannot_be_branched_from_is_refused(old: WrittenMemory, tmp_path: Path) -> None:
    manifest, new = old.paths.snapshot("global_step4"), MemoryPaths(tmp_path / "new")
    empty = WrittenMemory(tmp_path / "empty")
    empty.snapshot()
    beginning = MemoryPaths(tmp_path / "beginning")
    assert make_branch(empty.paths.snapshot("global_step0"), beginning, FORMAT).step_offset == 0
    with pytest.raises(ConfigError, match=r"meds.memory.branch_from=.*nowhere: is not a file"):
        make_branch(tmp_path / "nowhere", new, FORMAT)
    with pytest.raises(ConfigError, match=r"meds.memory.branch_from=.*: holds the memory of another model or feature"):
        make_branch(manifest, new, replace(FORMAT, model={"architecture": "B"}))
    file = files_of(old.root)[0]
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=r"cannot be branched from: .*arrow: is damaged"):
        make_branch(manifest, new, FORMAT)
    file.unlink()
    with pytest.raises(ConfigError, match=r"cannot be branched from: .* has \d+ rows up to step 4, and its snapshot"):
        make_branch(manifest, new, FORMAT)
    manifest.write_text("{")
    with pytest.raises(ConfigError, match=r"cannot be branched from: .*global_step4\.json"):
        make_branch(manifest, new, FORMAT)


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
        patch.setattr(branch.shutil if interrupted == "rmtree" else branch, interrupted, failing(KeyboardInterrupt()))
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
