"""The log on the disk: readable by pyarrow alone, whole up to the last batch wherever it is torn, never wrong."""

import os
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.log import ShardLog
from meds_openrlhf.memory.rows import log_schema, make_rows, with_answer
from meds_openrlhf.memory.segment import MESSAGE_MARK, SegmentState, Sharding, cut_file, read_batches, step_of
from meds_openrlhf.paths import MemoryPaths
from tests.test_locks import without_locks

SCHEMA = log_schema(4)
ALONE = Sharding(0, 1)


def batch_of(step: int, rows: int = 3) -> pa.RecordBatch:
    generator = np.random.default_rng(step)
    incoming = make_rows(
        list(range(rows)), [f"p{i}" for i in range(rows)], [False] * rows, generator.normal(size=(rows, 4)).astype("f4")
    )
    return with_answer(step, incoming, np.arange(rows, dtype="i4"), np.full(rows, step, "i4"))


def opened(root: Path, **options: object) -> tuple[ShardLog, list[pa.RecordBatch]]:
    """A log, and what it holds."""
    log = ShardLog(MemoryPaths(root), ALONE, SCHEMA, **options)  # type: ignore[arg-type]
    return log, list(log.open())


def log_of(root: Path, steps: int, **options: object) -> ShardLog:
    log, _ = opened(root, **options)
    for step in range(steps):
        log.append(batch_of(step))
    return log


def files_open_below(root: Path) -> list[str]:
    """The files of this process there."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that was just listed
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(str(root))]


def steps_in(root: Path) -> list[int]:
    """The steps that a new process finds."""
    log, batches = opened(root)
    log.close()
    return [step_of(batch) for batch in batches]


def states_of(log: ShardLog) -> list[SegmentState]:
    return list(log.states.values())


def ends_of(path: Path) -> list[int]:
    """Where each batch ends."""
    return [state.bytes for _, state in read_batches(path, SCHEMA)]


def segment_of(root: Path, number: int = 0) -> Path:
    return root / "shard-0000" / f"{number:06d}.arrow"


def test_pyarrow_alone_reads_what_was_written(tmp_path: Path) -> None:
    log_of(tmp_path, 3)
    with pa.OSFile(str(segment_of(tmp_path))) as source:
        table = pa.ipc.open_stream(source).read_all()
    assert table.column("step").to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert table.column("cluster_size").to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert table.schema.equals(SCHEMA)


def test_a_batch_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1)
    assert segment_of(tmp_path).stat().st_size == states_of(log)[0].bytes
    assert [batch.num_rows for batch, _ in read_batches(segment_of(tmp_path), SCHEMA)] == [3]


@pytest.mark.parametrize("fsync", [True, False])
def test_every_batch_is_synced_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    """Without ``fsync`` the batches wait for `sync`, which a snapshot calls."""
    synced: dict[int, int] = {}  # size at the last sync, by inode
    real_fsync = os.fsync

    def noted(descriptor: int) -> None:
        real_fsync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fsync", noted)
    log, _ = opened(tmp_path, fsync=fsync)
    for step in range(3):
        log.append(batch_of(step))
        state = segment_of(tmp_path).stat()
        assert synced.get(state.st_ino) == (state.st_size if fsync else None)
        assert segment_of(tmp_path).parent.stat().st_ino in synced  # the file's name
    log.sync()
    assert synced[state.st_ino] == state.st_size


def test_every_possible_tear_leaves_the_whole_batches(tmp_path: Path) -> None:
    log = log_of(tmp_path / "whole", 2, fsync=False)
    content = segment_of(tmp_path / "whole").read_bytes()
    ends = ends_of(segment_of(tmp_path / "whole"))
    assert ends[-1] == len(content) == states_of(log)[0].bytes
    for length in range(1, len(content) + 1):
        left = segment_of(tmp_path / f"torn-{length}")
        left.parent.mkdir(parents=True)
        left.write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        assert steps_in(tmp_path / f"torn-{length}") == list(range(whole))
        assert (left.stat().st_size if left.exists() else 0) == (ends[whole - 1] if whole else 0)


def test_a_torn_tail_is_reported_and_the_next_writer_begins_a_new_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_of(tmp_path, 2)._lock.close()  # its process dies
    with segment_of(tmp_path).open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x10")
    log, batches = opened(tmp_path)
    assert [step_of(batch) for batch in batches] == [0, 1]
    assert "cut 5 bytes" in caplog.text
    log.append(batch_of(2))
    assert list(log.states) == ["shard-0000/000000.arrow", "shard-0000/000001.arrow"]
    log.close()
    assert steps_in(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_an_error_that_names_the_file_or_changes_nothing(tmp_path: Path, every: int) -> None:
    """Of the last batch a flipped byte may read as torn: it is cut, which the pool's count of rows then notices."""
    log_of(tmp_path, 3).close()
    path = segment_of(tmp_path)
    expected = [batch.to_pydict() for batch, _ in read_batches(path, SCHEMA)]
    content, last = path.read_bytes(), ends_of(path)[1]
    errors = []
    positions = range(0, len(content), every)
    flips = [(position, mask) for position in positions for mask in (0x80, (0x55, 0xFF, 0x01)[position % 3])]
    for position, mask in flips:
        path.write_bytes(content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :])
        reader = ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA)
        try:
            got = [batch.to_pydict() for batch in reader.open()]
            assert got in (expected, expected[:2] if position >= last else expected)
            assert sum(state.batches for state in reader.states.values()) == len(got)
        except MemoryCorruptionError as error:
            errors.append(str(error))
        reader.close()
    assert len(errors) > len(flips) / 2
    assert all("000000.arrow" in error for error in errors)


def test_a_last_batch_that_reached_the_disk_in_part_is_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The system went down: the file has its length, and a page of it its zeros."""
    log = log_of(tmp_path, 3)
    moment = states_of(log)
    log.close()
    path = segment_of(tmp_path)
    content, middle = path.read_bytes(), sum(ends_of(path)[1:]) // 2
    path.write_bytes(content[:middle] + bytes(64) + content[middle + 64 :])
    again, batches = opened(tmp_path)
    assert [step_of(batch) for batch in batches] == [0, 1]
    assert "after its last whole batch" in caplog.text
    with pytest.raises(MemoryCorruptionError, match="is not what its snapshot says"):
        again.restore(moment)


@pytest.mark.parametrize("tail", ["schema", "mark"])
def test_a_torn_tail_may_contain_what_begins_a_message(tmp_path: Path, tail: str) -> None:
    """Only a whole batch behind unreadable bytes shows that they are damage."""
    log_of(tmp_path, 2).close()
    path = segment_of(tmp_path)
    content = path.read_bytes()
    schema = content[: content.index(MESSAGE_MARK, 1)]
    path.write_bytes(content + bytes(8) + (schema if tail == "schema" else MESSAGE_MARK + b"rubbish" * 9))
    assert steps_in(tmp_path) == [0, 1]
    assert path.read_bytes() == content


def test_damage_after_a_snapshot_does_not_hinder_going_back_to_it(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1)
    moment = states_of(log)
    for step in (1, 2):
        log.append(batch_of(step))
    log.close()
    path = segment_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[ends_of(path)[1] - 20] ^= 1
    path.write_bytes(content)
    again = ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA)
    again.restore(moment)
    again.close()
    assert steps_in(tmp_path) == [0]


def no_text() -> pa.RecordBatch:
    """A prompt that is no UTF-8, as damage may leave it."""
    batch = batch_of(0, rows=1)
    _, offsets, data = batch.column("prompt").buffers()
    prompt = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"\xff" * data.size))
    return batch.set_column(2, batch.schema.field("prompt"), prompt)


@pytest.mark.parametrize(
    ("batch", "problem"), [(batch_of(0).slice(0, 0), "it holds no rows"), (no_text(), "Invalid UTF8")]
)
def test_a_batch_that_the_log_would_not_write_is_refused(tmp_path: Path, batch: pa.RecordBatch, problem: str) -> None:
    path = segment_of(tmp_path)
    path.parent.mkdir(parents=True)
    with pa.OSFile(str(path), "wb") as file:
        writer = pa.ipc.new_stream(file, SCHEMA.with_metadata(ALONE.metadata))
        for content in (batch, batch_of(1)):
            step = str(content.column("step")[0].as_py() if len(content) else 0)
            writer.write_batch(content, custom_metadata={"step": step, "crc32": str(zlib.crc32(content.serialize()))})
    with pytest.raises(MemoryCorruptionError, match=rf"000000.arrow: batch 0.*{problem}"):
        opened(tmp_path)


def test_a_segment_that_does_not_say_whose_it_is_is_refused(tmp_path: Path) -> None:
    path = segment_of(tmp_path)
    path.parent.mkdir(parents=True)
    with pa.OSFile(str(path), "wb") as file:
        pa.ipc.new_stream(file, SCHEMA).write_batch(batch_of(0))
    with pytest.raises(MemoryCorruptionError, match=r"000000.arrow: does not say whose prompts it holds"):
        opened(tmp_path)


def test_segments_roll_over_by_size(tmp_path: Path) -> None:
    log = log_of(tmp_path, 4, segment_bytes=1500)
    assert len(log.states) > 1
    assert sum(state.batches for state in log.states.values()) == 4
    exactly_full = log_of(tmp_path / "full", 1, segment_bytes=ends_of(segment_of(tmp_path))[0])
    exactly_full.append(batch_of(1))
    assert [state.batches for state in states_of(exactly_full)] == [1, 1]
    log.close()
    assert steps_in(tmp_path) == [0, 1, 2, 3]


def test_restore_goes_back_to_an_earlier_moment(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    moment = states_of(log)
    for step in (2, 3):
        log.append(batch_of(step))
    log.close_segment()
    log.append(batch_of(4))  # in a segment that the moment does not know
    log.restore(moment)
    assert [step_of(batch) for batch in log.open()] == [0, 1]
    assert sorted(os.listdir(tmp_path / "shard-0000")) == [".lock", "000000.arrow"]
    assert states_of(log) == moment


def test_what_is_written_after_a_restore_is_there(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    log.restore([])
    assert list(log.open()) == []
    assert os.listdir(tmp_path / "shard-0000") == [".lock"]
    log.append(batch_of(5))
    log.close()
    assert steps_in(tmp_path) == [5]


def test_a_closed_log_holds_no_file(tmp_path: Path) -> None:
    log = log_of(tmp_path, 3, segment_bytes=1)
    assert files_open_below(tmp_path)
    log.close()
    assert not files_open_below(tmp_path)


def test_restore_refuses_files_that_are_not_what_they_were(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    moment = states_of(log)
    log.close()
    path = segment_of(tmp_path)
    content = path.read_bytes()
    for damaged in (content[:-8], content[:-30] + b"\x01" * 30):
        path.write_bytes(damaged)
        with pytest.raises(MemoryCorruptionError, match=r"000000.arrow: is not what its snapshot"):
            log.restore(moment)
        assert path.read_bytes() == damaged
    path.unlink()
    with pytest.raises(MemoryCorruptionError, match="is missing"):
        log.restore(moment)


def test_a_disk_of_its_own_is_cut_of_segments_of_another_division(tmp_path: Path) -> None:
    """Else they are cut by the shard that the folder belongs to: here by number 0 of 2."""
    log = log_of(tmp_path, 2)
    log.close()
    moment = [state for _, state in read_batches(segment_of(tmp_path), SCHEMA)][:1]
    other = ShardLog(MemoryPaths(tmp_path), Sharding(1, 2), SCHEMA)
    other.restore(moment)
    assert steps_in(tmp_path) == [0, 1]
    other.restore(moment, disk_of_its_own=True)
    assert steps_in(tmp_path) == [0]


def test_a_file_that_another_run_shares_is_not_changed_by_a_cut(tmp_path: Path) -> None:
    """As branches of earlier versions do."""
    log = log_of(tmp_path, 1)
    moment = states_of(log)
    log.append(batch_of(1))
    log.close()
    content = segment_of(tmp_path).read_bytes()
    os.link(segment_of(tmp_path), tmp_path / "of another run")
    log.restore(moment)
    assert segment_of(tmp_path).stat().st_size == moment[0].bytes
    assert (tmp_path / "of another run").read_bytes() == content


def test_a_full_disk_stores_nothing_and_the_log_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, 1)
    real_write = os.write

    def half_then_full(descriptor: int, data: memoryview) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data[: len(data) - 50])

    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(OSError, match=r"000000.arrow: step 1 could not be written \(No space left on device\)"):
        log.append(batch_of(1))
    monkeypatch.undo()
    log.append(batch_of(1))
    assert [state.rows for state in states_of(log)] == [3, 3]
    log.close()
    assert steps_in(tmp_path) == [0, 1]


def test_a_segment_in_which_nothing_was_stored_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened(tmp_path)
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="nothing was stored"):
        log.append(batch_of(0))
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.arrow"))


def test_another_models_rows_are_refused(tmp_path: Path) -> None:
    log_of(tmp_path, 1).close()
    with pytest.raises(MemoryCorruptionError, match="another model"):
        list(ShardLog(MemoryPaths(tmp_path), ALONE, log_schema(8)).open())


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    first = log_of(tmp_path, 1)
    second = ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA, lock_seconds=0.2)
    with pytest.raises(MemoryBusyError, match=rf"shard-0000: is in use by process {os.getpid()} on"):
        list(second.open())
    first.close()
    assert [step_of(batch) for batch in second.open()] == [0]


def test_without_locks_one_line_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    with pytest.raises(MemoryBusyError, match=r"shard-0000: the file system has no file locks .*lock_seconds: null"):
        list(ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA).open())
    assert list(ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA, lock_seconds=None).open()) == []


def test_two_shards_may_cut_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "shard-0000" / "000000.arrow"
    cut_file(path, 0)  # the other one was faster
    log_of(tmp_path, 1).close()
    cut_file(path, path.stat().st_size)
    assert steps_in(tmp_path) == [0]
