"""What the tests of tracking share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from meds_openrlhf.memory.segment import SegmentState

from meds_openrlhf.files import write_atomically
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, write_manifest
from tests.tracking.sending.wandb_server import WandbServer, wandb_server
from tests.tracking.sending.written_run import WrittenRun


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "runs" / "my-run")


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with wandb_server() as running:
        yield running


@pytest.fixture
def snapshot(run: WrittenRun) -> Path:
    segment = SegmentState("shard-0000/000001.arrow", 1, 5, 2, 1, 77)
    content = write_manifest(Snapshot(MemoryFormat(1, 4, {"layers": 4}), "hash", [segment]))
    write_atomically(run.paths.memory.root / segment.name, b"rows!and more")
    write_atomically(run.paths.memory.snapshot("global_step2"), content)
    return run.paths.memory.snapshot("global_step2")
