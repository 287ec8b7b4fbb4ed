"""What the tests of tracking share."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from meds_openrlhf.tracking.sending import _Sender
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
    for thread in threading.enumerate():
        if isinstance(thread, _Sender) and thread.name == "W&B":  # else the next test's W&B asks this one's server
            thread.join(60)
            assert not thread.is_alive()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "runs" / "my-run")


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with wandb_server() as running:
        yield running


@pytest.fixture
def online(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> WandbServer:
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    return server
