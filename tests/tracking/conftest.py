"""What the tests of tracking share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracking.wandb_server import WandbServer, wandb_server
from tests.tracking.written_run import WrittenRun


@pytest.fixture(autouse=True)
def _without_trackers() -> Iterator[None]:
    """Neither the trackers that this machine's user has asked for, nor what a test or a client leaves behind."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(("WANDB_", "SWANLAB_", "MLFLOW_")):
            del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "runs" / "my-run")


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with wandb_server() as running:
        yield running
