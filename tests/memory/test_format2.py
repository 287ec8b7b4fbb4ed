"""A memory of format 2, as earlier versions wrote it, with files that are not written any more: `format2/`.

Two shards stored steps 1 to 5 of ``stream(9, prompts=14, per_step=7)`` and went back to step 4; three shards stored
steps 5 and 6. Segments have an index beside them, except that of shard 2 of 3, which was killed while it wrote; after
the change of the number of shards `earlier.json` lists the older segments. ``answers.json`` has what was answered: for
each step the sample, label and size of every row, those of steps 7 and 8 from going on.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.memory.branch import make_branch, rewrite_memory
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.format2 import batches_in
from meds_openrlhf.memory.snapshot import BRANCH_SNAPSHOT, FORMAT_VERSION, read_format, read_snapshot
from meds_openrlhf.memory.stored import open_memory, verify_memory
from meds_openrlhf.paths import MemoryPaths
from tests.memory.streams import stream
from tests.memory.written import WrittenMemory
from tests.memory.written import answers_of as rows_of

FOLDER = Path(__file__).with_name("format2")
ANSWERS = {int(step): rows for step, rows in json.loads((FOLDER / "answers.json").read_text()).items()}
BATCHES = stream(9, prompts=14, per_step=7)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "memory"))


def answers_of(memory: WrittenMemory, step: int) -> list[list[int]]:
    memory.step = step - 1
    return [list(row) for row in rows_of(memory.observe(BATCHES[step - 1]))[0]]


def rewritten(root: Path, count: int) -> WrittenMemory:
    """The memory, as a run on so many shards continues it."""
    paths = MemoryPaths(root)
    found = read_format(paths)
    assert found is not None
    rewrite_memory(paths, replace(found, shards=count))
    assert verify_memory(open_memory(root)).damage == []
    return WrittenMemory(root, shards=count)


@pytest.mark.parametrize("snapshot", [None, "global_step6", "global_step4"])
@pytest.mark.parametrize("count", [3, 2])
def test_a_run_goes_on_as_if_nothing_had_changed(root: Path, snapshot: str | None, count: int) -> None:
    """From where it was killed, or from one of its checkpoints, on the same number of shards or on another."""
    memory = rewritten(root, count)
    if snapshot is not None:
        memory.restore(read_snapshot(memory.paths.snapshot(snapshot)).state)
    first = 5 if snapshot == "global_step4" else 7
    for step in (2, *range(first, 9)):
        assert answers_of(memory, step) == ANSWERS[step]
    assert sum(shard.stats().rows for shard in memory.open) == sum(map(len, BATCHES[:8]))


def test_a_branch_goes_on_from_one_of_its_snapshots(root: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found = read_format(MemoryPaths(root))
    assert found is not None
    new = MemoryPaths(tmp_path / "new")
    wanted = replace(found, shards=2, format_version=FORMAT_VERSION)
    assert make_branch(root / "snapshots" / "global_step6.json", new, wanted).step_offset == 6
    memory = WrittenMemory(new.root)
    memory.restore(read_snapshot(new.snapshot(BRANCH_SNAPSHOT)).state)
    assert [answers_of(memory, step) for step in (7, 8)] == [ANSWERS[7], ANSWERS[8]]
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_tools_read_it_and_warn_of_a_torn_batch(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = open_memory(root)
    read = [(step, rows.column("sample").to_pylist()) for step, rows in memory.rows_by_step()]
    assert read == [(step, [row[0] for row in ANSWERS[step]]) for step in range(1, 7)]
    (record,) = caplog.records
    assert record.getMessage().endswith(": its last 9 bytes are torn or damaged, and are left out")
    assert verify_memory(memory).damage == []


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_noticed_in_its_file(root: Path, caplog: pytest.LogCaptureFixture, every: int) -> None:
    """The rows after it are left out, and a snapshot that has them does not fit any more."""
    schema = open_memory(root).schema
    path = max(root.rglob("*.arrow"), key=lambda path: path.stat().st_size)
    content = path.read_bytes()
    expected = [batch.to_pydict() for batch in batches_in(path.parent, schema)]
    for position in range(0, len(content), every):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        caplog.clear()
        noticed = []
        try:
            found = [batch.to_pydict() for batch in batches_in(path.parent, schema)]
            noticed += [record.getMessage() for record in caplog.records]
            read_snapshot(root / "snapshots" / "global_step6.json")
        except MemoryCorruptionError as error:
            noticed.append(str(error))
        assert found == expected or any(path.name in line for line in noticed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../../etc/passwd"}, "names '../../etc/passwd', which is not a segment of a memory"),
        ({"name": "shard-0001/000000.arrow\n"}, "names .* which is not a segment of a memory"),
        ({"name": 7}, "names 7, which is not a segment of a memory"),
        ({"name": "shard-0000/000009.arrow"}, "does not fit .*000009.arrow"),
        ({"rows": 1000}, "does not fit .*arrow"),
        ({"batches": 1}, "does not fit .*arrow"),
        ({"bytes": 64}, "does not fit .*arrow"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(root: Path, changes: dict, message: str) -> None:
    path = root / "snapshots" / "global_step4.json"
    content = json.loads(path.read_text())
    content["segments"][0].update(changes)
    path.write_text(json.dumps(content))
    with pytest.raises(MemoryCorruptionError, match=rf"global_step4\.json: {message}"):
        read_snapshot(path)
