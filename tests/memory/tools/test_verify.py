"""Verification: silent about what is sound, also while it grows; every kind of damage is a line that names the file."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.log import ShardLog
from meds_openrlhf.memory.rows import log_schema, make_rows, shard_of, with_answer
from meds_openrlhf.memory.segment import Sharding, read_batches
from meds_openrlhf.memory.tools.stored_memory import open_memory
from meds_openrlhf.memory.tools.verify import Verification, verify_memory
from meds_openrlhf.paths import MemoryPaths, RunPaths
from tests.memory.streams import LAYERS, stream
from tests.memory.tools.stored import WrittenMemory, file_of, flip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two shards, two segments each, three snapshots; the run is over."""
    memory = WrittenMemory(tmp_path / "memory")
    batches = stream(6)
    memory.observe(*batches[:2])
    memory.snapshot("global_step2")
    memory.observe(batches[2])
    memory.start()
    memory.observe(batches[3])
    memory.snapshot("global_step4")
    memory.observe(*batches[4:])
    memory.snapshot("global_step6")
    memory.stop()
    return memory.root


def verified(root: Path) -> Verification:
    return verify_memory(open_memory(root))


def damage(root: Path) -> list[str]:
    return [finding.text.removeprefix(f"{root}/") for finding in verified(root).damage]


def test_a_sound_memory_has_no_findings(root: Path) -> None:
    report = verified(root)
    assert report.findings == []
    assert (report.segments, report.snapshots) == (4, 3)
    assert report.rows == sum(len(rows) for rows in stream(6))


def test_a_run_that_goes_on_is_sound_at_any_moment(tmp_path: Path) -> None:
    memory = WrittenMemory(tmp_path)
    assert verified(tmp_path).findings == []
    for step, rows in enumerate(stream(4), start=1):
        memory.observe(rows)
        assert verified(tmp_path).findings == []
        memory.snapshot(f"global_step{step}")
        assert verified(tmp_path).findings == []


@pytest.mark.parametrize("torn", [b"\xff", b"\xff\xff\xff\xff\x10\x01", b"\0" * 300])
def test_a_torn_tail_is_a_note_in_the_newest_segment_alone(root: Path, torn: bytes) -> None:
    with file_of(root, 1).open("ab") as file:
        file.write(torn)
    assert [finding.damage for finding in verified(root).findings] == [False]
    assert f"000001.arrow: {len(torn)} bytes after its last whole batch" in verified(root).findings[0].text
    with file_of(root, 0).open("ab") as file:
        file.write(torn)
    assert any("shard-0000/000000.arrow" in text and "torn (though others" in text for text in damage(root))


def test_every_flipped_byte_is_found(root: Path) -> None:
    """In any file of the memory; whatever the file, a line names it, or the snapshot that no longer fits."""
    generator = np.random.default_rng(0)
    files = sorted(root.rglob("*.arrow"))
    assert len(files) == 4
    for path in files:
        content = path.read_bytes()
        for position in generator.integers(len(content), size=12).tolist():
            flip(path, position)
            assert any(path.name in text or path.stem + ".arrow" in text for text in damage(root)), (path, position)
            path.write_bytes(content)
    assert damage(root) == []


def test_a_shortened_segment_is_found_by_snapshots(root: Path) -> None:
    path = file_of(root, 1)
    ends = [state.bytes for _, state in read_batches(path, log_schema(LAYERS))]
    path.write_bytes(path.read_bytes()[: ends[0]])  # at the end of a batch: nothing is torn
    fit = "does not fit shard-0000/000001.arrow, of which no sound batch ends at byte"
    assert damage(root) == [f"snapshots/global_step6.json: {fit} {ends[-1]}"]


def change_manifest(root: Path, snapshot: str, changes: dict) -> None:
    path = MemoryPaths(root).snapshot(snapshot)
    content = json.loads(path.read_text())
    content["segments"][0].update(changes)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../../etc/passwd"}, "global_step4.json: names '../../etc/passwd', which is no segment"),
        ({"name": "shard-0000/000009.arrow"}, "global_step4.json: does not fit shard-0000/000009.arrow, which is miss"),
        ({"rows": 1000}, "global_step4.json: does not fit shard-0000/000000.arrow, which has .* not 1000 in 2"),
        ({"batches": 1}, "global_step4.json: does not fit shard-0000/000000.arrow, which has .* in 2 batches"),
        ({"crc32": 5}, "global_step4.json: does not fit shard-0000/000000.arrow, whose checksum up to byte"),
        ({"bytes": 64}, "global_step4.json: does not fit shard-0000/000000.arrow, of which no sound batch ends at"),
        ({"shards": 7}, "global_step4.json: does not fit .* written by one of 2 shards, not of 7"),
        ({"rows": -1}, "global_step4.json: a count of shard-0000/000000.arrow is no number"),
        ({"name": "shard-0001/000000.arrow"}, "global_step4.json: names a segment twice"),
    ],
)
def test_a_manifest_that_is_wrong_is_found(root: Path, changes: dict, message: str) -> None:
    change_manifest(root, "global_step4", changes)
    found = damage(root)
    assert all("global_step4.json" in text for text in found)
    assert any(re.search(message, text) for text in found)


def test_a_manifest_that_is_no_json_or_of_another_model_is_found(root: Path) -> None:
    path = MemoryPaths(root).snapshot("global_step2")
    content = path.read_text()
    path.write_text("{")
    assert [text.split(": ")[0] for text in damage(root)] == ["snapshots/global_step2.json"]
    path.write_text(content.replace('"architecture": "Test"', '"architecture": "Other"'))
    assert damage(root) == ["snapshots/global_step2.json: is of another model than format.json"]


def test_a_missing_segment_is_found(root: Path) -> None:
    file_of(root, 1, shard=1).unlink()
    assert {text.split(", ")[1] for text in damage(root)} == {"which is missing or cannot be read"}


def test_a_snapshot_that_a_restart_has_undone_is_a_note_unless_a_checkpoint_names_it(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    memory = WrittenMemory(run.memory.root)
    batches = stream(5)
    memory.observe(*batches[:2])
    memory.snapshot("global_step2")
    moment = memory.states()
    memory.observe(batches[2])
    memory.snapshot("global_step3")
    memory.restore(moment)  # step 3's checkpoint was never saved to the end
    memory.step = 2
    memory.observe(*batches[3:])
    run.config.write_text("")
    run.complete.mkdir(parents=True)
    (run.complete / "global_step2").write_text("{}")
    report = verified(tmp_path)
    assert report.damage == []
    assert all("global_step3.json" in f.text and "no whole checkpoint names" in f.text for f in report.findings)
    assert report.findings
    (run.complete / "global_step3").write_text("{}")
    assert len(verified(tmp_path).damage) == len(report.findings)


def test_rows_that_are_there_twice_or_in_another_shard_are_found(root: Path) -> None:
    shutil.copyfile(file_of(root, 0), file_of(root, 2))
    batches = [batch for batch, _ in read_batches(file_of(root, 0), log_schema(LAYERS))]
    first = batches[0].sort_by("sample").to_pylist()[0]
    one = f"one is step {first['step']}, sample {first['sample']}"
    rows = sum(len(batch) for batch in batches)
    assert damage(root) == [f"shard-0000/000002.arrow: {rows} rows are stored already ({one})"]
    file_of(root, 2).rename(file_of(root, 2, shard=1))
    assert "shard-0001/000002.arrow: says that shard 0 wrote it, and lies in another's folder" in damage(root)


def in_shard_0(key: str) -> bool:
    return shard_of(key, 2) == 0


def test_steps_out_of_order_and_strangers_are_found(tmp_path: Path) -> None:
    WrittenMemory(tmp_path).stop()
    log = ShardLog(MemoryPaths(tmp_path), Sharding(0, 2), log_schema(LAYERS), fsync=False)
    list(log.open())
    keys = [f"p{i}" for i in range(8)]
    rows = make_rows(range(8), keys, [False] * 8, np.ones((8, LAYERS), np.float32))
    log.append(with_answer(4, rows, np.zeros(8, np.int32), np.zeros(8, np.int32)))
    log.append(with_answer(2, rows, np.zeros(8, np.int32), np.zeros(8, np.int32)))
    log.close()
    found = damage(tmp_path)
    assert "shard-0000/000000.arrow: step 2 comes after step 4" in found
    strangers = [key for key in keys if not in_shard_0(key)]
    text = f"than 0 of 2 ({len(strangers)}, one is {min(strangers)!r})"
    assert f"shard-0000/000000.arrow: holds prompts that belong to another shard {text}" in found


def test_what_is_no_memory_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"RUN: '.*none' does not exist; name a run's folder"):
        open_memory(tmp_path / "none")
    with pytest.raises(ConfigError, match="holds no memory; name a run's folder"):
        open_memory(root / "snapshots")
    content = json.loads((root / "format.json").read_text())
    (root / "format.json").write_text(json.dumps({**content, "format_version": 1}))
    with pytest.raises(ConfigError, match="holds a memory of format 1, this program reads 2"):
        open_memory(tmp_path)


def test_the_report_is_a_value(root: Path) -> None:
    """A memory given by its own folder or by its run's is the same."""
    assert verified(root) == verified(root.parent)
    assert replace(open_memory(root), run=None).run is None
