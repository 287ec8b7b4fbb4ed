"""A memory of format 2, as earlier versions wrote it, with files that are not written any more: `format2/`.

Two shards stored steps 1 to 5 of ``stream(9, prompts=14, per_step=7)`` and went back to step 4; three shards stored
steps 5 and 6. Segments have an index beside them, except that of shard 2 of 3, which was killed while it wrote; after
the change of the number of shards `earlier.json` lists the older segments. ``answers.json`` has what was answered: for
each step the sample, label and size of every row, those of steps 7 and 8 from going on.
"""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from meds_openrlhf.memory.rows import shard_of
from meds_openrlhf.memory.shard import MemoryShard
from meds_openrlhf.memory.snapshot import read_snapshot
from meds_openrlhf.memory.tools.stored_memory import open_memory
from meds_openrlhf.memory.tools.verify import verify_memory
from meds_openrlhf.paths import MemoryPaths
from tests.memory.streams import stream
from tests.memory.test_shard import make_shard

FOLDER = Path(__file__).with_name("format2")
ANSWERS = {int(step): rows for step, rows in json.loads((FOLDER / "answers.json").read_text()).items()}
BATCHES = stream(9, prompts=14, per_step=7)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "memory"))


def answers_of(shards: list[MemoryShard], step: int) -> list[list[int]]:
    found = []
    for number, shard in enumerate(shards):
        rows = BATCHES[step - 1]
        own = [shard_of(key, len(shards)) == number for key in rows.column("prompt").to_pylist()]
        answer = shard.observe(step, rows.filter(pa.array(own)))
        found += [list(row) for row in zip(answer.sample.tolist(), answer.label.tolist(), answer.size.tolist())]
    return sorted(found)


@pytest.mark.parametrize("snapshot", [None, "global_step6", "global_step4"])
@pytest.mark.parametrize("count", [3, 2])
def test_a_run_goes_on_as_if_nothing_had_changed(root: Path, snapshot: str | None, count: int) -> None:
    """From where it was killed, or from one of its checkpoints, on the same number of shards or on another."""
    shards = [make_shard(root, shard=number, shards=count) for number in range(count)]
    if snapshot is not None:
        for shard in shards:
            shard.restore(read_snapshot(MemoryPaths(root).snapshot(snapshot)).segments)
    first = 5 if snapshot == "global_step4" else 7
    for step in (2, *range(first, 9)):
        assert answers_of(shards, step) == ANSWERS[step]
    assert sum(shard.stats().rows for shard in shards) == sum(map(len, BATCHES[:8]))


def test_the_tools_read_it(root: Path) -> None:
    memory = open_memory(root)
    assert [finding.text.split(": ")[1] for finding in verify_memory(memory).findings] == [
        "9 bytes after its last whole batch are torn (being written, or left by a process that died)"
    ]
    read = [(step, rows.column("sample").to_pylist()) for step, rows in memory.rows_by_step()]
    assert read == [(step, [row[0] for row in ANSWERS[step]]) for step in range(1, 7)]
