"""The log on the disk: readable by pyarrow alone, durable before it is acknowledged, and never wrong."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.log import LogState, ShardLog, batches_in, read_rows
from meds_openrlhf.memory.rows import Sharding, log_schema, make_rows, step_of, with_answer
from meds_openrlhf.paths import MemoryPaths
from tests.test_locks import without_locks

SCHEMA = log_schema(4)
ALONE = Sharding(0, 1)


def batch_of(step: int, rows: int = 3) -> pa.RecordBatch:
    logits = np.random.default_rng(step).normal(size=(rows, 4)).astype("f4")
    incoming = make_rows(list(range(rows)), [f"p{i}" for i in range(rows)], [False] * rows, logits)
    return with_answer(step, incoming, np.arange(rows, dtype="i4"), np.full(rows, step, "i4"))


def opened(root: Path) -> tuple[ShardLog, list[pa.RecordBatch]]:
    """A log, and what it holds."""
    log = ShardLog(MemoryPaths(root), ALONE, SCHEMA)
    return log, list(log.open())


def log_of(root: Path, steps: int) -> ShardLog:
    log, _ = opened(root)
    for step in range(steps):
        log.append(batch_of(step))
    return log


def steps_in(root: Path) -> list[int]:
    """The steps that a new process finds."""
    log, batches = opened(root)
    log.close()
    return [step_of(batch) for batch in batches]


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "shard-0000").iterdir() if path.name != ".lock")


def test_pyarrow_alone_reads_what_was_written(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    log.merge()
    log.append(batch_of(2))
    assert names_in(tmp_path) == ["000000-000001.arrow", "000002.arrow"]
    assert log.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.arrow"))
    files = [pa.ipc.open_stream((tmp_path / "shard-0000" / name).read_bytes()) for name in names_in(tmp_path)]
    table = pa.concat_tables(file.read_all() for file in files)
    assert table.column("step").to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert table.column("cluster_size").to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert table.schema.equals(SCHEMA)


def test_a_flipped_byte_a_cut_and_a_byte_too_many_are_found_wherever_they_are(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    log.merge()
    path = tmp_path / "shard-0000" / "000000-000001.arrow"
    content = path.read_bytes()
    damaged = [content + b"\0"]
    for position in range(0, len(content), 7):
        flipped = bytes([content[position] ^ (0x80, 0x55, 0xFF, 0x01)[position % 4]])
        damaged += [content[:position], content[:position] + flipped + content[position + 1 :]]
    for other in damaged:
        path.write_bytes(other)
        with pytest.raises(MemoryCorruptionError, match=r"000000-000001\.arrow: is damaged"):
            read_rows(path, SCHEMA)


def test_a_step_is_found_in_its_own_file_and_in_a_merged_one(tmp_path: Path) -> None:
    log = log_of(tmp_path, 3)
    log.merge()
    log.append(batch_of(7))
    (tmp_path / "shard-0000" / ".000008.arrow.0a1b2c3d.tmp").write_bytes(b"x" * 100)  # a write that was interrupted
    for step in (0, 2, 7):
        found = log.rows_of(step)
        assert found is not None
        assert found.to_pydict() == batch_of(step).to_pydict()
    assert log.rows_of(5) is log.rows_of(8) is None
    log.close()
    assert steps_in(tmp_path) == [0, 1, 2, 7]


@pytest.mark.parametrize("step", range(-1, 6))
def test_restore_goes_back_to_any_step(tmp_path: Path, step: int) -> None:
    """To none, to one inside of a merged file, with another part merged and not; damage behind it does not matter."""
    log = log_of(tmp_path, 4)
    log.merge()
    log.append(batch_of(4))
    log.append(batch_of(5))
    if step < 5:
        (tmp_path / "shard-0000" / "000005.arrow").write_bytes(b"x")
    log.restore(LogState(step, {"shard-0000": 3 * (step + 1)}))
    assert [step_of(batch) for batch in log.open()] == list(range(step + 1))
    log.append(batch_of(step + 1))
    log.close()
    assert steps_in(tmp_path) == list(range(step + 2))


def test_restore_keeps_every_row_whenever_a_merge_was_killed(tmp_path: Path) -> None:
    """A file that was merged into another, and is still there, has the name of the file that restore writes."""
    log = log_of(tmp_path, 4)
    log.merge()
    for step in (4, 5, 6):
        log.append(batch_of(step))
    folder = tmp_path / "shard-0000"
    parts = {path: path.read_bytes() for path in folder.glob("*.arrow")}
    log.merge()
    for path, content in parts.items():
        path.write_bytes(content)  # killed before it was removed
    for _ in range(2):
        log.restore(LogState(4, {"shard-0000": 15}))
        log.close()
        assert steps_in(tmp_path) == [0, 1, 2, 3, 4]


def test_restore_refuses_what_is_not_as_it_was_and_removes_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path, 4)
    state = log.merge()
    log.append(batch_of(4))
    before = names_in(tmp_path)
    for wrong in (LogState(3, {"shard-0000": 11}), LogState(2, state.rows), LogState(3, {})):
        with pytest.raises(MemoryCorruptionError, match=r"shard-0000: holds \d+ rows up to step \d, and the snapshot"):
            log.restore(wrong)
        assert names_in(tmp_path) == before
    path = tmp_path / "shard-0000" / "000000-000003.arrow"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\1")
    with pytest.raises(MemoryCorruptionError, match=r"000000-000003\.arrow: is damaged"):
        log.restore(state)
    path.unlink()
    with pytest.raises(MemoryCorruptionError, match="holds 0 rows up to step 3"):
        log.restore(state)
    assert names_in(tmp_path) == ["000004.arrow"]


def test_another_models_rows_and_another_shards_are_refused(tmp_path: Path) -> None:
    log_of(tmp_path, 1).close()
    with pytest.raises(MemoryCorruptionError, match="another model"):
        list(ShardLog(MemoryPaths(tmp_path), ALONE, log_schema(8)).open())
    with pytest.raises(MemoryCorruptionError, match=r"was written by shard 0 of 1, and is read by shard 0 of 2"):
        list(ShardLog(MemoryPaths(tmp_path), Sharding(0, 2), SCHEMA).open())


def test_a_second_writer_and_a_disk_without_locks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = log_of(tmp_path, 1)
    second = ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA, lock_seconds=0.2)
    with pytest.raises(MemoryBusyError, match=rf"shard-0000: is in use by process {os.getpid()} on"):
        list(second.open())
    first.close()
    assert [step_of(batch) for batch in second.open()] == [0]
    without_locks(monkeypatch)
    with pytest.raises(MemoryBusyError, match=r"shard-0000: the file system has no file locks .*lock_seconds: null"):
        list(ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA).open())
    assert len(list(ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA, lock_seconds=None).open())) == 1


def test_a_reader_follows_a_log_that_is_merged_meanwhile(tmp_path: Path) -> None:
    log = log_of(tmp_path, 4)
    reader = batches_in(tmp_path / "shard-0000", SCHEMA)
    read = [step_of(next(reader))]
    log.append(batch_of(4))
    log.merge()
    assert read + [step_of(batch) for batch in reader] == [0, 1, 2, 3, 4]
