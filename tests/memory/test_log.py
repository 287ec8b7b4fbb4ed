"""The log on the disk: readable by pyarrow alone, whole up to the last batch wherever it is torn, never wrong."""

import os
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.memory import folder_lock
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.log import SegmentLog
from meds_openrlhf.memory.rows import log_schema, make_rows, with_answer
from meds_openrlhf.memory.segment import Sharding, read_batches
from meds_openrlhf.memory.segment_index import index_path, write_index
from meds_openrlhf.paths import MemoryPaths

SCHEMA = log_schema(4)
ALONE = Sharding(0, 1)


def batch_of(step: int, rows: int = 3) -> pa.RecordBatch:
    generator = np.random.default_rng(step)
    incoming = make_rows(
        list(range(rows)), [f"p{i}" for i in range(rows)], [False] * rows, generator.normal(size=(rows, 4)).astype("f4")
    )
    return with_answer(step, incoming, np.arange(rows, dtype="i4"), np.full(rows, step, "i4"))


def opened(root: Path, **options: object) -> SegmentLog:
    log = SegmentLog(MemoryPaths(root), ALONE, SCHEMA, **options)  # type: ignore[arg-type]
    log.open()
    return log


def log_of(root: Path, steps: int, **options: object) -> SegmentLog:
    log = opened(root, **options)
    for step in range(steps):
        log.append(batch_of(step), step)
    return log


def steps_in(log: SegmentLog) -> list[int]:
    read = [segment.read(number) for segment in log.segments for number in range(len(segment.index.batches))]
    return [batch.column("step")[0].as_py() for batch in read]


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
    assert segment_of(tmp_path).stat().st_size == log.states[0].bytes
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
    log = opened(tmp_path, fsync=fsync)
    for step in range(3):
        log.append(batch_of(step), step)
        state = segment_of(tmp_path).stat()
        assert synced.get(state.st_ino) == (state.st_size if fsync else None)
    log.sync()
    assert synced[state.st_ino] == state.st_size


def test_every_possible_tear_leaves_the_whole_batches(tmp_path: Path) -> None:
    log = log_of(tmp_path / "whole", 2, fsync=False)
    content = segment_of(tmp_path / "whole").read_bytes()
    ends = [entry.end for _, entry in read_batches(segment_of(tmp_path / "whole"), SCHEMA)]
    assert ends[-1] == len(content) == log.states[0].bytes
    for length in range(1, len(content) + 1):
        left = segment_of(tmp_path / f"torn-{length}")
        left.parent.mkdir(parents=True)
        left.write_bytes(content[:length])
        torn = opened(tmp_path / f"torn-{length}")
        whole = sum(end <= length for end in ends)
        assert steps_in(torn) == list(range(whole))
        assert (left.stat().st_size if left.exists() else 0) == (ends[whole - 1] if whole else 0)
        torn.close()


def test_a_torn_tail_is_reported_and_the_next_writer_begins_a_new_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_of(tmp_path, 2)._lock.release()  # its process dies: nothing is sealed
    with segment_of(tmp_path).open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x10")
    log = opened(tmp_path)
    assert steps_in(log) == [0, 1]
    assert "cut 5 bytes" in caplog.text
    log.append(batch_of(2), 2)
    assert [state.name for state in log.states] == ["shard-0000/000000.arrow", "shard-0000/000001.arrow"]
    log.close()
    assert steps_in(opened(tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_an_error_that_names_the_file_or_changes_nothing(tmp_path: Path, every: int) -> None:
    """Of the last batch a flipped byte may read as torn: it is cut, which the pool's count of rows then notices."""
    log = log_of(tmp_path, 3)
    expected = [segment.read(n).to_pydict() for segment in log.segments for n in range(3)]
    path = segment_of(tmp_path)
    log._lock.release()
    content = path.read_bytes()
    last = log.segments[0].index.batches[-1].start
    errors = []
    positions = range(0, len(content), every)
    flips = [(position, mask) for position in positions for mask in (0x80, (0x55, 0xFF, 0x01)[position % 3])]
    for position, mask in flips:
        path.write_bytes(content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :])
        index_path(path).unlink(missing_ok=True)
        reader = SegmentLog(MemoryPaths(tmp_path), ALONE, SCHEMA)
        try:
            reader.open()
            got = [
                segment.read(n).to_pydict() for segment in reader.segments for n in range(len(segment.index.batches))
            ]
            assert got in (expected, expected[:2] if position >= last else expected)
            assert [entry.step for one in reader.segments for entry in one.index.batches] == list(range(len(got)))
        except MemoryCorruptionError as error:
            errors.append(str(error))
        reader._lock.release()
    assert len(errors) > len(flips) / 2
    assert all("000000.arrow" in error for error in errors)


def test_a_last_batch_that_reached_the_disk_in_part_is_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The system went down: the file has its length, and a page of it its zeros."""
    log = log_of(tmp_path, 3)
    moment, last = log.states, log.segments[0].index.batches[-1]
    log._lock.release()
    path = segment_of(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: last.logits] + bytes(16) + content[last.logits + 16 :])
    again = opened(tmp_path)
    assert steps_in(again) == [0, 1]
    assert "behind its last whole batch" in caplog.text
    with pytest.raises(MemoryCorruptionError, match="is not what its snapshot says"):
        again.restore(moment, {0})


def test_damage_behind_a_snapshot_does_not_hinder_going_back_to_it(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1)
    moment = log.states
    for step in (1, 2):
        log.append(batch_of(step), step)
    log._lock.release()
    path = segment_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[log.segments[0].index.batches[1].logits] ^= 1
    path.write_bytes(content)
    again = SegmentLog(MemoryPaths(tmp_path), ALONE, SCHEMA)
    again.restore(moment, {0})
    again.open()
    assert steps_in(again) == [0]


def test_a_segment_that_the_log_would_not_write_so_is_refused(tmp_path: Path) -> None:
    """Compressed, or with nothing in a batch: its rows are not where a reader without checks would fetch them."""
    schema = SCHEMA.with_metadata(ALONE.metadata)
    for name, batch, codec in (("zstd", batch_of(0), "zstd"), ("empty", batch_of(0).slice(0, 0), None)):
        path = segment_of(tmp_path / name)
        path.parent.mkdir(parents=True)
        with pa.OSFile(str(path), "wb") as file:
            writer = pa.ipc.new_stream(file, schema, options=pa.ipc.IpcWriteOptions(compression=codec))
            for content in (batch, batch_of(1)):
                metadata = {"step": "0", "crc32": str(zlib.crc32(content.serialize()))}
                writer.write_batch(content, custom_metadata=metadata)
        with pytest.raises(MemoryCorruptionError, match=r"000000.arrow: batch 0.*(compressed|no rows)"):
            opened(tmp_path / name)


def test_an_index_that_describes_other_rows_is_found(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    log.close()
    path, index = segment_of(tmp_path), log.segments[0].index
    index.prompts[0], index.prompts[1] = index.prompts[1], index.prompts[0]
    write_index(path, index)
    with pytest.raises(MemoryCorruptionError, match=r"000000.index: does not describe batch 0 of its segment"):
        steps_in(opened(tmp_path))


def test_a_flipped_bit_behind_an_index_is_found_when_the_batch_is_first_read(tmp_path: Path) -> None:
    log = log_of(tmp_path, 3)
    log.close()
    path = segment_of(tmp_path)
    entry = log.segments[0].index.batches[1]
    content = bytearray(path.read_bytes())
    content[entry.logits + 5] ^= 1
    path.write_bytes(content)
    segment = opened(tmp_path).segments[0]
    segment.logits(np.array([log.segments[0].index.batches[0].logits // 4]))  # the first batch is sound
    with pytest.raises(MemoryCorruptionError, match=r"000000.arrow: the batch of step 1 is damaged"):
        segment.logits(np.array([entry.logits // 4]))


def test_segments_roll_over_by_size(tmp_path: Path) -> None:
    log = log_of(tmp_path, 4, segment_bytes=1500)
    assert len(log.states) > 1
    assert sum(state.batches for state in log.states) == 4
    log.close()
    assert steps_in(opened(tmp_path)) == [0, 1, 2, 3]


@pytest.mark.parametrize("damage", ["missing", "flipped", "of another length"])
def test_an_index_that_is_not_right_is_made_again(tmp_path: Path, damage: str) -> None:
    log_of(tmp_path, 3).close()
    path = index_path(segment_of(tmp_path))
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    else:
        other = log_of(tmp_path / "other", 2)
        other.close()
        path.write_bytes(index_path(segment_of(tmp_path / "other")).read_bytes())
    log = opened(tmp_path)
    assert steps_in(log) == [0, 1, 2]
    assert path.read_bytes() == content


def test_restore_goes_back_to_an_earlier_moment(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    moment = log.states
    for step in (2, 3):
        log.append(batch_of(step), step)
    log.seal()
    log.append(batch_of(4), 4)  # in a segment that the moment does not know
    log.restore(moment, {0})
    log.open()
    assert steps_in(log) == [0, 1]
    assert sorted(os.listdir(tmp_path / "shard-0000")) == [".lock", "000000.arrow", "000000.index"]
    assert log.states == moment


def test_restore_refuses_files_that_are_not_what_they_were(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    moment = log.states
    log.close()
    path = segment_of(tmp_path)
    content = path.read_bytes()
    for damaged in (content[:-8], content[:-30] + b"\x01" * 30):
        path.write_bytes(damaged)
        index_path(path).unlink(missing_ok=True)
        with pytest.raises(MemoryCorruptionError, match=r"000000.arrow: is not what its snapshot"):
            log.restore(moment, {0})
        assert path.read_bytes() == damaged
    path.unlink()
    with pytest.raises(MemoryCorruptionError, match="is missing"):
        log.restore(moment, {0})


def test_a_file_that_another_run_shares_is_not_changed_by_a_cut(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1)
    moment = log.states
    log.append(batch_of(1), 1)
    log.close()
    content = segment_of(tmp_path).read_bytes()
    os.link(segment_of(tmp_path), tmp_path / "of another run")
    log.restore(moment, {0})
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
        log.append(batch_of(1), 1)
    monkeypatch.undo()
    log.append(batch_of(1), 1)
    assert steps_in(log) == [0, 1]
    log.close()
    assert steps_in(opened(tmp_path)) == [0, 1]


def test_another_models_rows_are_refused(tmp_path: Path) -> None:
    log_of(tmp_path, 1)._lock.release()
    with pytest.raises(MemoryCorruptionError, match="another model"):
        SegmentLog(MemoryPaths(tmp_path), ALONE, log_schema(8)).open()


def test_a_second_writer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = log_of(tmp_path, 1)
    second = SegmentLog(MemoryPaths(tmp_path), ALONE, SCHEMA)
    monkeypatch.setattr(second, "_lock", folder_lock.FolderLock(tmp_path / "shard-0000", patience_seconds=0.2))
    with pytest.raises(MemoryBusyError, match=rf"shard-0000: is being written by process {os.getpid()} on"):
        second.open()
    first.close()
    second.open()
    assert steps_in(second) == [0]
