"""The log on the disk: readable by pyarrow alone, whole up to the last batch wherever it is torn."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.log import SegmentLog, read_segment
from meds_openrlhf.memory.rows import log_schema, make_rows, with_answer

SCHEMA = log_schema(4)


def batch_of(step: int, rows: int = 3) -> pa.RecordBatch:
    generator = np.random.default_rng(step)
    incoming = make_rows(
        list(range(rows)), [f"p{i}" for i in range(rows)], [False] * rows, generator.normal(size=(rows, 4)).astype("f4")
    )
    return with_answer(step, incoming, np.arange(rows, dtype="i4"), np.full(rows, step, "i4"))


def log_of(folder: Path, steps: int, **options: object) -> SegmentLog:
    log = SegmentLog(folder, SCHEMA, **options)  # type: ignore[arg-type]
    for step in range(steps):
        log.append(batch_of(step), step)
    return log


def steps_in(log: SegmentLog) -> list[int]:
    return [batch.column("step")[0].as_py() for batch in log.load()]


def test_pyarrow_alone_reads_what_was_written(tmp_path: Path) -> None:
    log_of(tmp_path, 3)
    with pa.OSFile(str(tmp_path / "000000.arrow")) as source:
        table = pa.ipc.open_stream(source).read_all()
    assert table.column("step").to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert table.column("cluster_size").to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert table.schema.equals(SCHEMA)


def test_a_batch_is_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1)
    assert (tmp_path / "000000.arrow").stat().st_size == log.segments[0].bytes
    assert steps_in(SegmentLog(tmp_path, SCHEMA)) == [0]


def test_every_possible_tear_leaves_the_whole_batches(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2, fsync=False)
    content = (tmp_path / "000000.arrow").read_bytes()
    ends = [state.bytes for _, state in read_segment(tmp_path / "000000.arrow", SCHEMA)]
    assert ends[-1] == len(content) == log.segments[0].bytes
    for length in range(1, len(content) + 1):
        torn = tmp_path / f"torn-{length}"
        torn.mkdir()
        (torn / "000000.arrow").write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        assert steps_in(SegmentLog(torn, SCHEMA)) == list(range(whole))
        left = torn / "000000.arrow"
        assert (left.stat().st_size if left.exists() else 0) == (ends[whole - 1] if whole else 0)


def test_a_torn_tail_is_reported_and_the_next_writer_begins_a_new_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_of(tmp_path, 2)
    with (tmp_path / "000000.arrow").open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x10")
    log = SegmentLog(tmp_path, SCHEMA)
    assert steps_in(log) == [0, 1]
    assert "cut 5 bytes" in caplog.text
    log.append(batch_of(2), 2)
    assert [state.name for state in log.segments] == ["000000.arrow", "000001.arrow"]
    assert steps_in(SegmentLog(tmp_path, SCHEMA)) == [0, 1, 2]


def test_a_flipped_bit_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    log_of(tmp_path, 3)
    path = tmp_path / "000000.arrow"
    ends = [state.bytes for _, state in read_segment(path, SCHEMA)]
    content = bytearray(path.read_bytes())
    content[ends[1] - 24] ^= 1  # in the second batch's layer logits
    path.write_bytes(content)
    with pytest.raises(MemoryCorruptionError, match=r"000000.arrow: batch 1 does not match its checksum"):
        steps_in(SegmentLog(tmp_path, SCHEMA))


def test_segments_roll_over_by_size(tmp_path: Path) -> None:
    log = log_of(tmp_path, 4, segment_bytes=1500)
    assert len(log.segments) > 1
    assert sum(state.batches for state in log.segments) == 4
    assert steps_in(SegmentLog(tmp_path, SCHEMA)) == [0, 1, 2, 3]


def test_truncate_goes_back_to_an_earlier_moment(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    moment = log.segments
    for step in (2, 3):
        log.append(batch_of(step), step)
    log.close()
    log.append(batch_of(4), 4)  # in a segment that the moment does not know
    log.truncate(moment)
    assert steps_in(log) == [0, 1]
    assert sorted(os.listdir(tmp_path)) == ["000000.arrow"]
    assert log.segments == moment


def test_truncate_refuses_files_that_are_not_what_they_were(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    moment = log.segments
    path = tmp_path / "000000.arrow"
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    with pytest.raises(MemoryCorruptionError, match="a snapshot names"):
        log.truncate(moment)
    path.write_bytes(content[:-30] + b"\x00" * 30)
    with pytest.raises(MemoryCorruptionError, match="does not match its snapshot"):
        log.truncate(moment)
    path.unlink()
    with pytest.raises(MemoryCorruptionError, match="is missing"):
        log.truncate(moment)


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
    assert steps_in(SegmentLog(tmp_path, SCHEMA)) == [0, 1]


def test_another_models_rows_are_refused(tmp_path: Path) -> None:
    log_of(tmp_path, 1)
    with pytest.raises(MemoryCorruptionError, match="another model"):
        steps_in(SegmentLog(tmp_path, log_schema(8)))
