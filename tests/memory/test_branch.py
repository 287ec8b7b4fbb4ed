"""A run that begins with another run's memory: the same answers, and neither disturbs the other."""

from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.branch import BRANCH_SNAPSHOT, make_branch
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot, read_format, read_snapshot
from meds_openrlhf.paths import MemoryPaths
from tests.memory.streams import LAYERS, stream
from tests.memory.test_shard import as_lists, make_shard, run

FORMAT = MemoryFormat(1, LAYERS, {"architecture": "A"})


def test_a_branch_goes_on_from_another_runs_snapshot(tmp_path: Path) -> None:
    batches = stream(6)
    old_paths, new_paths = MemoryPaths(tmp_path / "old"), MemoryPaths(tmp_path / "new")
    old = make_shard(old_paths.root)
    run(old, batches[:2])
    old._log.close_segment()
    run(old, batches[2:3], first=3)
    commit_snapshot(old_paths, "global_step3", Snapshot(FORMAT, "", old.snapshot()))
    after = run(old, batches[3:], first=4)

    for _ in range(2):  # a second time, as after a crash in the middle of the first
        made = make_branch(old_paths.snapshot("global_step3"), new_paths, FORMAT)
        assert made.step_offset == 3
        assert read_format(new_paths) == made
    new = make_shard(new_paths.root)
    new.restore(read_snapshot(new_paths.snapshot(BRANCH_SNAPSHOT)).segments)
    assert as_lists(run(new, batches[3:], first=4)) == as_lists(after)
    new.restore([])
    assert old.stats().rows == sum(map(len, batches))
    old.close()
    assert as_lists([make_shard(old_paths.root).observe(6, batches[5])]) == as_lists(after[-1:])


def test_a_branch_of_a_memory_without_rows_begins_at_the_beginning(tmp_path: Path) -> None:
    old_paths = MemoryPaths(tmp_path / "old")
    commit_snapshot(old_paths, "global_step3", Snapshot(FORMAT, "", []))
    assert make_branch(old_paths.snapshot("global_step3"), MemoryPaths(tmp_path / "new"), FORMAT).step_offset == 0


def test_a_run_that_goes_on_does_not_write_into_its_branches(tmp_path: Path) -> None:
    """The newest segment is still being written when it is copied."""
    batches = stream(6)
    old_paths, new_paths = MemoryPaths(tmp_path / "old"), MemoryPaths(tmp_path / "new")
    old = make_shard(old_paths.root)
    run(old, batches[:3])
    commit_snapshot(old_paths, "global_step3", Snapshot(FORMAT, "", old.snapshot()))
    make_branch(old_paths.snapshot("global_step3"), new_paths, FORMAT)
    run(old, batches[3:], first=4)
    assert make_shard(new_paths.root).stats().rows == sum(map(len, batches[:3]))


def test_what_cannot_be_branched_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"meds.memory.branch_from: .*nowhere.* is no file"):
        make_branch(tmp_path / "nowhere", MemoryPaths(tmp_path / "new"), FORMAT)
    paths, shard = MemoryPaths(tmp_path / "old"), make_shard(tmp_path / "old")
    run(shard, stream(2))
    commit_snapshot(paths, "s", Snapshot(FORMAT, "", shard.snapshot()))
    with pytest.raises(ConfigError, match=r"meds.memory.branch_from: .* holds the memory of another model or feature"):
        make_branch(paths.snapshot("s"), MemoryPaths(tmp_path / "new"), MemoryFormat(1, LAYERS, {"architecture": "B"}))
    segment = paths.shard(0) / "000000.arrow"
    segment.write_bytes(segment.read_bytes()[:-8])
    with pytest.raises(ConfigError, match="is not what its snapshot says"):
        make_branch(paths.snapshot("s"), MemoryPaths(tmp_path / "new"), FORMAT)
    segment.unlink()
    with pytest.raises(ConfigError, match=r"names shard-0000/000000.arrow, which is missing beside it"):
        make_branch(paths.snapshot("s"), MemoryPaths(tmp_path / "new"), FORMAT)
