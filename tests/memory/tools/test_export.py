"""Export: all rows as Parquet, in order, a few at a time."""

from pathlib import Path

import pytest
from pyarrow import parquet

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.tools import export
from meds_openrlhf.memory.tools.stored_memory import open_memory
from tests.memory.streams import stream
from tests.memory.tools.stored import WrittenMemory, file_of, flip


@pytest.fixture
def memory(tmp_path: Path) -> WrittenMemory:
    """Still being written, by its second division into shards."""
    written = WrittenMemory(tmp_path / "memory", shards=3)
    written.observe(*stream(5)[:3])
    written.start(shards=2)
    written.observe(*stream(5)[3:])
    return written


@pytest.mark.parametrize("rows_at_once", [10, 65_536])
def test_all_rows_ordered_by_step_and_sample(
    memory: WrittenMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(export, "ROWS_AT_ONCE", rows_at_once)
    rows = export.export_parquet(open_memory(memory.root), tmp_path / "rows.parquet")
    table = parquet.read_table(tmp_path / "rows.parquet")
    given = [(step, row) for step, batch in enumerate(stream(5), start=1) for row in batch.to_pylist()]
    assert rows == len(table) == len(given)
    assert table.schema.equals(open_memory(memory.root).schema)
    assert table.column("step").to_pylist() == [step for step, _ in given]
    for name in ("sample", "prompt", "correct", "layer_logits"):
        assert table.column(name).to_pylist() == [row[name] for _, row in given]
    assert table.column("label").null_count > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory", "rows.parquet"]


def test_an_empty_memory_is_an_empty_table(tmp_path: Path) -> None:
    WrittenMemory(tmp_path / "memory")
    assert export.export_parquet(open_memory(tmp_path), tmp_path / "rows.parquet") == 0
    assert "layer_logits" in parquet.read_table(tmp_path / "rows.parquet").column_names


def test_damage_publishes_nothing(memory: WrittenMemory, tmp_path: Path) -> None:
    memory.stop()
    flip(file_of(memory.root), file_of(memory.root).stat().st_size // 2)
    (tmp_path / "rows.parquet").write_text("of yesterday")
    with pytest.raises(MemoryCorruptionError, match=r"shard-0000/000000\.arrow"):
        export.export_parquet(open_memory(memory.root), tmp_path / "rows.parquet")
    assert (tmp_path / "rows.parquet").read_text() == "of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory", "rows.parquet"]


def test_places_that_cannot_be_written_are_refused(memory: WrittenMemory, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--out: '.*none/rows\.parquet' is no file that can be written"):
        export.export_parquet(open_memory(memory.root), tmp_path / "none" / "rows.parquet")
    with pytest.raises(ConfigError, match=r"--out: .* lies inside the memory"):
        export.export_parquet(open_memory(memory.root), file_of(memory.root))


def test_reading_takes_no_lock_and_changes_nothing(memory: WrittenMemory, tmp_path: Path) -> None:
    memory.stop()
    (memory.root / "shard-0000" / ".lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in memory.root.rglob("*")}
    export.export_parquet(open_memory(memory.root), tmp_path / "rows.parquet")
    assert {path: path.stat().st_mtime_ns for path in memory.root.rglob("*")} == before
