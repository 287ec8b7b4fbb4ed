"""What the tests of tracking share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracking.wandb_server import WandbServer, wandb_server
from tests.tracking.written_run import WrittenRun, without_trackers


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with without_trackers():
        yield


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
