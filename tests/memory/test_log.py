"""The log on the disk: readable by pyarrow alone, durable before it is acknowledged, and never wrong."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meds_openrlhf.arrow_files import CHECKSUM, NO_CHECKSUM, with_checksum
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import UnusableFileError
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.log import STEP, VISITS, LogState, ShardLog, StoredStep, read_steps
from meds_openrlhf.memory.log import steps_in as steps_of_folder
from meds_openrlhf.memory.rows import Sharding, log_schema, make_rows, with_answer
from meds_openrlhf.memory.successes import Visit, visits_to_json
from meds_openrlhf.paths import MemoryPaths
from tests.failing import failing
from tests.test_locks import without_locks

SCHEMA = log_schema(4)
ALONE = Sharding(0, 1)


def batch_of(step: int, rows: int = 3) -> pa.RecordBatch:
    logits = np.random.default_rng(step).normal(size=(rows, 4)).astype("f4")
    incoming = make_rows(list(range(rows)), [f"p{i}" for i in range(rows)], [False] * rows, logits)
    return with_answer(step, incoming, np.arange(rows, dtype="i4"), np.full(rows, step, "i4"))


def stored(step: int, rows: int = 3) -> StoredStep:
    """Rows, and visits in every step but the first, as of a memory of an earlier version."""
    visits = {f"p{i}": Visit(i, 8, 0.1 * i if step > 1 else None) for i in range(step)}
    return StoredStep(step, batch_of(step, rows), visits)


def state_at(step: int) -> LogState:
    """The state of `log_of`."""
    return LogState(step, {"shard-0000": 3 * (step + 1)}, {"shard-0000": step * (step + 1) // 2})


def opened(root: Path) -> tuple[ShardLog, list[StoredStep]]:
    """A log, and what it holds."""
    log = ShardLog(MemoryPaths(root), ALONE, SCHEMA)
    return log, list(log.open())


def log_of(root: Path, steps: int) -> ShardLog:
    log, _ = opened(root)
    for step in range(steps):
        log.append(stored(step))
    return log


def steps_in(root: Path) -> list[int]:
    """The steps that a new process finds."""
    log, batches = opened(root)
    log.close()
    return [stored.step for stored in batches]


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "shard-0000").iterdir() if path.name != ".lock")


def test_pyarrow_alone_reads_what_was_written(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    log.merge()
    log.append(stored(2))
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
            read_steps(path, SCHEMA)


def test_a_step_is_found_in_its_own_file_and_in_a_merged_one(tmp_path: Path) -> None:
    log = log_of(tmp_path, 3)
    log.merge()
    log.append(stored(7))
    (tmp_path / "shard-0000" / ".000008.arrow.0a1b2c3d.tmp").write_bytes(b"x" * 100)  # a write that was interrupted
    for step in (0, 2, 7):
        found = log.stored(step)
        assert found is not None
        assert found.rows.to_pydict() == batch_of(step).to_pydict()
        assert found.visits == stored(step).visits
    assert log.stored(5) is log.stored(8) is None
    log.close()
    assert steps_in(tmp_path) == [0, 1, 2, 7]


@pytest.mark.parametrize("step", range(-1, 6))
def test_restore_goes_back_to_any_step(tmp_path: Path, step: int) -> None:
    """To none, to one inside of a merged file, with another part merged and not; damage behind it does not matter."""
    log = log_of(tmp_path, 4)
    log.merge()
    log.append(stored(4))
    log.append(stored(5))
    if step < 5:
        (tmp_path / "shard-0000" / "000005.arrow").write_bytes(b"x")
    log.restore(state_at(step))
    assert [stored.step for stored in log.open()] == list(range(step + 1))
    log.append(stored(step + 1))
    log.close()
    assert steps_in(tmp_path) == list(range(step + 2))


def test_restore_keeps_every_row_whenever_a_merge_was_killed(tmp_path: Path) -> None:
    """A file that was merged into another, and is still there, has the name of the file that restore writes."""
    log = log_of(tmp_path, 4)
    log.merge()
    for step in (4, 5, 6):
        log.append(stored(step))
    folder = tmp_path / "shard-0000"
    parts = {path: path.read_bytes() for path in folder.glob("*.arrow")}
    log.merge()
    for path, content in parts.items():
        path.write_bytes(content)  # killed before it was removed
    for _ in range(2):
        log.restore(state_at(4))
        log.close()
        assert steps_in(tmp_path) == [0, 1, 2, 3, 4]


def test_restore_refuses_what_is_not_as_it_was_and_removes_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path, 4)
    state = log.merge()
    log.append(stored(4))
    before = names_in(tmp_path)
    for wrong in (
        LogState(3, {"shard-0000": 11}), LogState(2, state.rows), LogState(3, {}), LogState(3, state.rows),
    ):  # fmt: skip
        with pytest.raises(MemoryCorruptionError, match=r"shard-0000: holds \d+ (row|visit)s up to step \d, and the"):
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
    assert [stored.step for stored in second.open()] == [0]
    without_locks(monkeypatch)
    with pytest.raises(MemoryBusyError, match=r"shard-0000: the file system has no file locks .*lock_seconds: null"):
        list(ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA).open())
    assert len(list(ShardLog(MemoryPaths(tmp_path), ALONE, SCHEMA, lock_seconds=None).open())) == 1


def test_a_reader_follows_a_log_that_is_merged_meanwhile(tmp_path: Path) -> None:
    log = log_of(tmp_path, 4)
    reader = steps_of_folder(tmp_path / "shard-0000", SCHEMA)
    read = [next(reader).step]
    log.append(stored(4))
    log.merge()
    assert read + [stored.step for stored in reader] == [0, 1, 2, 3, 4]


def test_a_merged_file_that_is_damaged_costs_none_of_its_parts(tmp_path: Path) -> None:
    """A crash, or a copy of half of a file, can leave it beside them."""
    log_of(tmp_path, 3).close()
    folder = tmp_path / "shard-0000"
    parts = {path.name: path.read_bytes() for path in folder.glob("*.arrow")}
    for content in (b"", parts["000001.arrow"][:100], parts["000001.arrow"]):
        (folder / "000000-999999.arrow").write_bytes(content)
        with pytest.raises(MemoryCorruptionError, match=r"000000-999999\.arrow"):
            opened(tmp_path)
        assert {name: (folder / name).read_bytes() for name in parts} == parts
    (folder / "000000-999999.arrow").unlink()
    assert steps_in(tmp_path) == [0, 1, 2]


def test_what_a_merged_file_replaces_and_what_a_restore_undoes_is_moved_aside(tmp_path: Path) -> None:
    log = log_of(tmp_path, 3)
    parts = {path.name: path.read_bytes() for path in (tmp_path / "shard-0000").glob("*.arrow")}
    state = log.merge()
    log.append(stored(3))
    log.close()
    for name, content in parts.items():  # as after a crash between the two
        (tmp_path / "shard-0000" / name).write_bytes(content)
    log, batches = opened(tmp_path)
    assert [stored.step for stored in batches] == [0, 1, 2, 3]
    aside = tmp_path / "shard-0000" / "aside"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == parts
    log.restore(state)
    assert [stored.step for stored in log.open()] == [0, 1, 2]
    assert {path.name for path in aside.iterdir()} == {*parts, "000003.arrow"}


def rewritten(
    path: Path,
    batches: list[pa.RecordBatch],
    metadata: dict[str, str] | None = None,
    of_batch: dict[str, str] | None = None,
) -> None:
    """Write a file with a right checksum, whatever is in it."""
    known = {"shard": "0", "shards": "1"} if metadata is None else metadata
    schema = (batches[0].schema if batches else SCHEMA).with_metadata({**known, CHECKSUM: NO_CHECKSUM.decode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(None), custom_metadata=of_batch)
    path.write_bytes(with_checksum(sink.getvalue().to_pybytes()))


def test_a_right_checksum_does_not_make_a_file_right(tmp_path: Path) -> None:
    log_of(tmp_path, 1).close()
    path = tmp_path / "shard-0000" / "000000.arrow"
    one, two, empty = batch_of(0), batch_of(1), batch_of(0, 1).slice(0, 0)
    both = pa.Table.from_batches([one, two]).combine_chunks().to_batches()[0]
    nullable = pa.schema([field.with_nullable(True) for field in SCHEMA])
    nulls = pa.RecordBatch.from_arrays(
        [pa.nulls(3, pa.string()) if n == "prompt" else c for n, c in zip(SCHEMA.names, one.columns)], schema=nullable
    )
    for batches, metadata in (
        ([], None), ([empty], None), ([one, one], None), ([both], None), ([two], None), ([nulls], None),
        ([one], {}), ([one], {"shard": "0", "shards": "0"}), ([one], {"shard": "1", "shards": "1"}),
        ([one], {"shard": "x", "shards": "1"}), ([one], {"shard": "9" * 5_000, "shards": "1"}),
    ):  # fmt: skip
        rewritten(path, batches, metadata)
        with pytest.raises(MemoryCorruptionError, match=r"000000\.arrow"):
            read_steps(path, SCHEMA)
    path.write_bytes(with_checksum(b"not Arrow at all, " + NO_CHECKSUM))
    with pytest.raises(MemoryCorruptionError, match=r"000000\.arrow: is damaged"):
        read_steps(path, SCHEMA)
    rewritten(path, [one])
    assert read_steps(path, SCHEMA)[0].rows.equals(one)


def test_visits_that_cannot_be_are_damage(tmp_path: Path) -> None:
    log_of(tmp_path, 1).close()
    path, one = tmp_path / "shard-0000" / "000000.arrow", batch_of(0)
    sound = {STEP: "0", VISITS: visits_to_json({"p": Visit(1, 8, 0.5), "q": Visit(0, 8, None)})}
    rewritten(path, [one], of_batch=sound)
    assert read_steps(path, SCHEMA)[0].visits["p"] == Visit(1, 8, 0.5)
    rewritten(path, [one.slice(0, 0)], of_batch=sound)  # of a step without rows
    assert read_steps(path, SCHEMA)[0].step == 0
    for text in (
        "[]", "{", '{"p": 1}', '{"p": [1, 8]}', '{"p": [9, 8, 0.5]}', '{"p": [0, 0, 0.5]}', '{"p": [1, 8, 1.5]}',
        '{"p": [1, 8, NaN]}', '{"p": [true, 8, 0.5]}', '{"p": [1, 8.0, 0.5]}', '{"p": [-1, 8, 0.5]}', "[" * 5_000,
        '{"p": [1, 99999999999999999999, null]}', '{"\\ud800": [1, 8, null]}', '{"p": [1, 8, 0], "p": [1, 8, 0]}',
        f'{{"{"p" * (1 << 24)}": [1, 8, null]}}',
    ):  # fmt: skip
        rewritten(path, [one], of_batch={**sound, VISITS: text})
        with pytest.raises(MemoryCorruptionError, match=r"000000\.arrow: is damaged"):
            read_steps(path, SCHEMA)
    for step in ("1", "", "x", "9" * 5_000, "-1"):
        for rows in (one, one.slice(0, 0)):
            rewritten(path, [rows], of_batch={**sound, STEP: step})
            with pytest.raises(MemoryCorruptionError, match=r"000000\.arrow"):
                read_steps(path, SCHEMA)


@pytest.mark.parametrize("target", ["nowhere", "/nowhere", "/dev/zero"])
def test_a_link_in_a_shards_folder_is_no_endless_loop(tmp_path: Path, target: str) -> None:
    log_of(tmp_path, 1).close()
    (tmp_path / "shard-0000" / "000001.arrow").symlink_to(target)
    with pytest.raises((MemoryCorruptionError, ConfigError), match=r"000001\.arrow: leads (out|nowhere)"):
        list(steps_of_folder(tmp_path / "shard-0000", SCHEMA))


def test_a_lock_that_is_a_link_leaves_its_target_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "shard-0000").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "shard-0000" / ".lock").symlink_to("../victim")
    with pytest.raises(UnusableFileError, match="is a link"):
        opened(tmp_path)
    assert (tmp_path / "victim").read_text() == "precious"


def test_what_could_not_be_stored_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has its name when its folder cannot be synced."""
    log = log_of(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr("meds_openrlhf.files.sync_folder", failing(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match=r"the rows of step 3 could not be written .*; nothing was stored"):
            log.append(stored(3))
    assert not list(tmp_path.rglob("000003.arrow"))
    log.append(stored(3))
    assert log.rows == 9
