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
from meds_openrlhf.memory.snapshot import BRANCH_SNAPSHOT, FORMAT_VERSION, read_snapshot
from meds_openrlhf.memory.stored import open_memory, verify_memory
from meds_openrlhf.paths import MemoryPaths
from tests.memory.streams import stream
from tests.memory.written import WrittenMemory

FOLDER = Path(__file__).with_name("format2")
ANSWERS = {int(step): [*map(tuple, rows)] for step, rows in json.loads((FOLDER / "answers.json").read_text()).items()}
BATCHES = stream(9, prompts=14, per_step=7)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "memory"))


def answer_to(memory: WrittenMemory, step: int) -> list[tuple[int, int, int]]:
    memory.step = step - 1
    return memory.observe(BATCHES[step - 1])[0]


@pytest.mark.parametrize("snapshot", [None, "global_step6", "global_step4"])
@pytest.mark.parametrize("count", [3, 2])
def test_a_run_goes_on_as_if_nothing_had_changed(root: Path, snapshot: str | None, count: int) -> None:
    """From where it was killed, or from one of its checkpoints, on the same number of shards or on another."""
    rewrite_memory(MemoryPaths(root), replace(open_memory(root).format, shards=count))
    assert verify_memory(open_memory(root)).damage == []
    memory = WrittenMemory(root, count)
    if snapshot is not None:
        memory.restore(snapshot)
    first = 5 if snapshot == "global_step4" else 7
    for step in (2, *range(first, 9)):
        assert answer_to(memory, step) == ANSWERS[step]
    assert sum(shard.stats().rows for shard in memory.open) == sum(map(len, BATCHES[:8]))


def test_a_branch_goes_on_from_one_of_its_snapshots(root: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    wanted = replace(open_memory(root).format, shards=2, format_version=FORMAT_VERSION)
    new = MemoryPaths(tmp_path / "new")
    assert make_branch(root / "snapshots" / "global_step6.json", new, wanted).step_offset == 6
    memory = WrittenMemory(new.root)
    memory.restore(BRANCH_SNAPSHOT)
    assert [answer_to(memory, step) for step in (7, 8)] == [ANSWERS[7], ANSWERS[8]]
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_tools_read_it_and_warn_of_a_torn_batch(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = open_memory(root)
    read = [(step, rows.column("sample").to_pylist()) for step, rows in memory.rows_by_step()]
    assert read == [(step, [row[0] for row in ANSWERS[step]]) for step in range(1, 7)]
    (record,) = caplog.records
    assert record.getMessage().endswith(": its last 9 bytes are torn or damaged, and are skipped")
    assert verify_memory(memory).damage == []


def test_a_flipped_byte_is_noticed(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rows after it are left out, and a snapshot that has them does not fit any more."""
    memory = open_memory(root)
    path = max(root.rglob("*.arrow"), key=lambda path: path.stat().st_size)
    content, whole = path.read_bytes(), len(memory.table())
    for position in (len(content) // 2, len(content) * 3 // 4):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        assert len(memory.table()) < whole
        assert f"{path}: its last " in caplog.text
        with pytest.raises(MemoryCorruptionError, match=rf"global_step6\.json: does not fit .*{path.name}"):
            read_snapshot(root / "snapshots" / "global_step6.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *[({"name": name}, "names .*, which is not a segment of a memory") for name in ("../../etc/passwd", 7)],
        ({"name": "shard-0001/000000.arrow\n"}, "names .* which is not a segment of a memory"),
        ({"name": "shard-0000/000009.arrow"}, "does not fit .*000009.arrow"),
        *[(wrong, "does not fit .*arrow") for wrong in ({"rows": 1000}, {"batches": 1}, {"bytes": 64})],
    ],
)
def test_a_manifest_that_is_wrong_is_refused(root: Path, changes: dict, message: str) -> None:
    path = root / "snapshots" / "global_step4.json"
    content = json.loads(path.read_text())
    content["segments"][0].update(changes)
    path.write_text(json.dumps(content))
    with pytest.raises(MemoryCorruptionError, match=rf"global_step4\.json: {message}"):
        read_snapshot(path)
