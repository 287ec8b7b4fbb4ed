"""Compaction: fewer files, the same rows, every snapshot restorable, and no instant at which a crash loses anything."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.segment import Sharding
from meds_openrlhf.memory.segment_index import index_path
from meds_openrlhf.memory.shard import MemoryShard
from meds_openrlhf.memory.snapshot import read_snapshot
from meds_openrlhf.memory.tools import compact as compact_module
from meds_openrlhf.memory.tools import folder_swap
from meds_openrlhf.memory.tools.compact import Size, compact_memory
from meds_openrlhf.memory.tools.stored_memory import open_memory
from meds_openrlhf.memory.tools.verify import verify_memory
from meds_openrlhf.paths import MemoryPaths, RunPaths
from tests.memory.streams import stream
from tests.memory.tools.stored import SETTINGS, WrittenMemory, file_of, flip

BATCHES = stream(12)


def restarted(root: Path, restarts: int = 4, **options: object) -> WrittenMemory:
    """Twelve steps with a restart after every few, and a snapshot after every step."""
    memory = WrittenMemory(root, **options)  # type: ignore[arg-type]
    for step, rows in enumerate(BATCHES, start=1):
        memory.observe(rows)
        memory.snapshot(f"global_step{step}")
        if step % (12 // restarts) == 0:
            memory.start()
    memory.stop()
    return memory


def rows_of(root: Path) -> list[dict]:
    return [row for _, rows in open_memory(root).rows_by_step() for row in rows.to_pylist()]


def segments_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.arrow"))


def restored_rows(root: Path, snapshot: str, shards: int, copy: Path) -> list[dict]:
    """What is there after going back to a snapshot, in a copy."""
    shutil.copytree(root, copy)
    paths = MemoryPaths(copy)
    opened = [MemoryShard(paths, Sharding(i, shards), SETTINGS) for i in range(shards)]
    for shard in opened:
        shard.restore(read_snapshot(paths.snapshot(snapshot)).segments)
    assert sum(shard.stats().rows for shard in opened) == read_snapshot(paths.snapshot(snapshot)).rows
    for shard in opened:
        shard.close()
    rows = rows_of(copy)
    shutil.rmtree(copy)
    return rows


def test_many_segments_become_one_per_shard_and_every_snapshot_restores(tmp_path: Path) -> None:
    root = tmp_path / "memory"
    restarted(root)
    rows = rows_of(root)
    before, after = compact_memory(tmp_path)
    assert (before.segments, after.segments) == (8, 2)
    assert after.bytes < before.bytes
    assert rows_of(root) == rows
    assert verify_memory(open_memory(root)).findings == []
    assert os.listdir(tmp_path) == ["memory"]
    for step in range(1, 13):
        expected = [row for row in rows if row["step"] <= step]
        assert restored_rows(root, f"global_step{step}", 2, tmp_path / "copy") == expected


def test_a_compacted_memory_answers_as_one_that_was_not(tmp_path: Path) -> None:
    logs = []
    for name in ("plain", "compacted"):
        memory = restarted(tmp_path / name)
        if name == "compacted":
            compact_memory(tmp_path / name)
        memory.start()
        memory.observe(*stream(15)[12:])
        memory.stop()
        logs.append(rows_of(tmp_path / name))
    assert logs[0] == logs[1]


def test_names_are_new_and_full_segments_are_shared(tmp_path: Path) -> None:
    """First a full segment, then small ones, then a full one again: only the small ones are written anew."""
    full = 5_500
    memory = WrittenMemory(tmp_path / "memory", shards=1, settings=replace(SETTINGS, segment_bytes=full))
    memory.observe(*BATCHES[:3])
    for rows in BATCHES[3:6]:
        memory.start()
        memory.observe(rows)
    memory.start()
    memory.observe(*BATCHES[6:])
    memory.stop()
    root = memory.root
    contents = {path.stat().st_ino: path.read_bytes() for path in root.rglob("*.arrow")}
    names = segments_of(root)
    rows = rows_of(root)
    sizes = [(root / name).stat().st_size for name in names]
    assert sizes[0] > full > sizes[1]
    before, after = compact_memory(root, segment_bytes=full)
    assert before.segments == len(names) > after.segments
    kept = [name for name in segments_of(root) if (root / name).stat().st_ino in contents]
    assert names[0] in kept
    assert len(kept) >= 2
    assert all((root / name).read_bytes() == contents[(root / name).stat().st_ino] for name in kept)
    assert set(segments_of(root)) & set(names) == {names[0]}  # no name stands for other content than before
    assert rows_of(root) == rows
    assert compact_memory(root, segment_bytes=full) == (after, after)


def test_a_segment_rolls_over_where_the_log_would(tmp_path: Path) -> None:
    root = tmp_path / "memory"
    restarted(root, restarts=12, shards=1)
    rows = rows_of(root)
    _, after = compact_memory(root, segment_bytes=8_000)
    sizes = [(root / name).stat().st_size for name in segments_of(root)]
    assert 1 < after.segments == len(sizes) < 12
    assert all(size >= 8_000 for size in sizes[:-1])
    assert rows_of(root) == rows
    for step in (1, 5, 12):
        expected = [row for row in rows if row["step"] <= step]
        assert restored_rows(root, f"global_step{step}", 1, tmp_path / "copy") == expected


def test_divisions_are_never_merged_and_rows_keep_their_order(tmp_path: Path) -> None:
    """One shard, then two, then one again: merging the first with the last would put young rows before older ones."""
    memory = WrittenMemory(tmp_path / "memory", shards=1)
    for step, rows in enumerate(BATCHES, start=1):
        memory.start({4: 2, 8: 1}.get(step - 1))
        memory.observe(rows)
        memory.snapshot(f"global_step{step}")
    labels = [memory.open[0].labels(f"prompt-{i}").tolist() for i in range(6)]
    memory.stop()
    root = memory.root
    rows = rows_of(root)
    compact_memory(root)
    assert len(segments_of(root)) == 4  # shard 0 of one, of two, of one again; shard 1 of two
    memory.start()
    assert [memory.open[0].labels(f"prompt-{i}").tolist() for i in range(6)] == labels
    memory.stop()
    for step in (3, 6, 12):
        expected = [row for row in rows if row["step"] <= step]
        assert restored_rows(root, f"global_step{step}", 1, tmp_path / "copy") == expected


def test_nothing_to_merge_changes_nothing(tmp_path: Path) -> None:
    memory = WrittenMemory(tmp_path)
    memory.observe(*BATCHES[:2])
    memory.stop()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    size = Size(2, sum(path.stat().st_size for path in tmp_path.rglob("*.arrow")))
    assert compact_memory(tmp_path) == (size, size)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    assert {p: t for p, t in after.items() if p.name != ".lock"} == {
        p: t for p, t in before.items() if p.name != ".lock"
    }


def test_a_torn_tail_goes_and_files_of_others_stay(tmp_path: Path) -> None:
    root = tmp_path / "memory"
    restarted(root)
    rows = rows_of(root)
    last = max((root / "shard-0000").glob("*.arrow"))
    index_path(last).unlink()
    with last.open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x10")
    (root / "shard-0001" / "notes.txt").write_text("mine")
    (root / "of the user").mkdir()
    (root / "of the user" / "x.arrow").write_text("mine too")
    compact_memory(root)
    assert rows_of(root) == rows
    assert (root / "shard-0001" / "notes.txt").read_text() == "mine"
    assert (root / "of the user" / "x.arrow").read_text() == "mine too"
    assert verify_memory(open_memory(root)).findings == []


def test_damage_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    root = tmp_path / "memory"
    restarted(root)
    names = segments_of(root)
    flip(file_of(root, 1), 1500)
    with pytest.raises(MemoryCorruptionError, match=r"shard-0000/000001\.arrow.*nothing was changed"):
        compact_memory(root)
    assert segments_of(root) == names
    assert os.listdir(tmp_path) == ["memory"]


def test_a_memory_in_use_is_refused(tmp_path: Path) -> None:
    memory = restarted(tmp_path / "memory")
    memory.start()
    memory.observe(stream(13)[12])
    with pytest.raises(ConfigError, match=r"RUN: '.*memory' is in use \(.*shard-0000: is being written by process"):
        compact_memory(tmp_path)
    memory.stop()
    run = RunPaths(tmp_path)
    run.config.write_text("")
    with (
        folder_swap.sole_driver(run, run.memory.root),
        pytest.raises(ConfigError, match="in use: the run in"),
    ):
        compact_memory(tmp_path / "memory")
    assert compact_memory(tmp_path)[1].segments == 2


def test_a_snapshot_that_fits_no_longer_stays_as_it_was(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    memory = restarted(run.memory.root)
    memory.start()
    memory.restore(read_snapshot(memory.paths.snapshot("global_step10")).segments)
    memory.stop()
    run.config.write_text("")
    run.complete.mkdir(parents=True)
    (run.complete / "global_step10").write_text("{}")
    undone = memory.paths.snapshot("global_step12").read_text()
    compact_memory(tmp_path)
    assert memory.paths.snapshot("global_step12").read_text() == undone
    assert verify_memory(open_memory(tmp_path)).damage == []
    expected = [row for row in rows_of(tmp_path) if row["step"] <= 10]
    assert restored_rows(memory.root, "global_step10", 2, tmp_path / "copy") == expected


class Killed(BaseException):
    """No handler of the code under test catches this."""


def kill_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """Die before the so many-th call that changes the names of folders or removes one, or writes a segment."""
    calls = 0

    def dying(real):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            if calls > moment:
                raise Killed
            return real(*args, **kwargs)

        return call

    for owner, name in (
        *((Path, "rename"), (Path, "unlink"), (Path, "rmdir"), (os, "replace"), (os, "link")),
        *((folder_swap, "sync_folder"), (compact_module, "encode_batch"), (shutil, "rmtree")),
    ):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))


def test_killed_at_any_instant_it_is_finished_or_undone_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted(tmp_path / "whole" / "memory", restarts=2)
    rows = rows_of(tmp_path / "whole")
    missing = moments = 0
    while True:
        run = tmp_path / f"killed-{moments}"
        shutil.copytree(tmp_path / "whole", run)
        with monkeypatch.context() as patch:
            kill_at(patch, moments)
            try:
                compact_memory(run)
                break
            except Killed:
                pass
        if (run / "memory").exists():
            assert rows_of(run) == rows  # readable as it is, without any repair
        else:
            missing += 1
            with pytest.raises(ConfigError, match=r"compaction that was interrupted; finish it: meds memory compact"):
                open_memory(run)
        assert compact_memory(run)[1].segments == 2
        assert rows_of(run) == rows
        assert verify_memory(open_memory(run)).findings == []
        assert os.listdir(run) == ["memory"]
        assert restored_rows(run / "memory", "global_step7", 2, tmp_path / "copy") == [
            row for row in rows if row["step"] <= 7
        ]
        shutil.rmtree(run)
        moments += 1
    assert missing >= 2
    assert moments > 15


def test_a_bare_memory_is_found_again_between_the_renames(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    restarted(root)
    rows = rows_of(root)
    shutil.copytree(root, tmp_path / "mine.compact")
    root.rename(tmp_path / "mine.old")
    with pytest.raises(ConfigError, match="finish it: meds memory compact"):
        open_memory(root)
    compact_memory(root)
    assert rows_of(root) == rows
    assert os.listdir(tmp_path) == ["mine"]


def test_folders_that_cannot_be_told_apart_are_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "memory"
    restarted(root)
    shutil.copytree(root, tmp_path / "memory.old")
    with pytest.raises(ConfigError, match=r"memory\.old' is where a compaction would put the old memory; move"):
        compact_memory(root)
    shutil.copytree(root, tmp_path / "memory.compact")
    with pytest.raises(ConfigError, match=r"lies beside memory\.old and memory\.compact"):
        compact_memory(root)
    shutil.rmtree(tmp_path / "memory.compact")
    shutil.rmtree(root)
    with pytest.raises(ConfigError, match=r"there is only memory\.old; rename that to memory"):
        compact_memory(root)
