"""`meds track`, with the real processes."""

import fcntl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meds_openrlhf.cli import track
from meds_openrlhf.cli.main import main
from meds_openrlhf.config.errors import how_to_install
from meds_openrlhf.tracking import sending
from tests.cli.conftest import Meds
from tests.processes import DEADLINE
from tests.tracking.wandb_server import wandb_server
from tests.tracking.written_run import WrittenRun, without_trackers


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WrittenRun]:
    monkeypatch.setattr(sending, "PATIENCE_SECONDS", DEADLINE)
    with without_trackers():
        yield WrittenRun(tmp_path / "my-run")


@pytest.mark.parametrize(
    ("package", "environment"),
    [("swanlab", {"SWANLAB_MODE": "offline"}), ("mlflow", {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"})],
)
def test_a_trackers_missing_package_and_a_folder_without_a_run_are_one_line(
    run: WrittenRun, package: str, environment: dict[str, str], meds: Meds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = meds.refusal("track", run.paths.root)
    assert said == f"track needs {package}, which is not installed; {how_to_install(package)}"
    run.paths.config.unlink()
    no_run = f"RUN={run.paths.root}: contains no run, since it has no config.yaml."
    assert meds.refusal("track", run.paths.root) == no_run


def test_an_ended_run_is_sent(run: WrittenRun, meds: Meds, monkeypatch: pytest.MonkeyPatch) -> None:
    run.step(1, loss=1.0)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "d4" * 20)
        assert meds.output("track", run.paths.root) == "everything is sent\n"
        assert server.points("train/loss") == [1]
    assert list(run.paths.root.glob("tensorboard/my-run/events*"))


@pytest.mark.parametrize(("behavior", "line"), [("hangs", "W&B: no answer for 1 s"), ("refuses", "W&B: CommError: ")])
def test_once_ends_where_wandb_does_not_answer_or_refuses(
    run: WrittenRun, behavior: str, line: str, meds: Meds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "STOP_SECONDS", 4.0)
    if behavior == "hangs":
        monkeypatch.setattr(sending, "PATIENCE_SECONDS", 1.0)
    run.step(1, loss=1.0)
    with wandb_server() as server:
        server.behavior = behavior
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", "d4" * 20)
        code, printed, _ = meds("track", "--once", run.paths.root)
    *silence, end = printed.splitlines()
    assert code == 1
    assert next(said for said in silence if said.startswith("W&B")).startswith(line)
    assert end == f"not everything was sent to W&B. Send the rest with: meds track {run.paths.root}"
    assert list(run.tensorboard.iterdir())


def test_a_run_that_goes_on_is_followed_to_its_end(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "RUN_LOOK_SECONDS", 0.1)
    run.step(1, loss=1.0)
    with run.paths.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert track.goes_on(run.paths)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(main(["track", str(run.paths.root)])))
        thread.start()
        while not run.paths.tracking.exists():
            assert thread.is_alive()
            time.sleep(0.02)
        run.step(2, loss=2.0)
        assert thread.is_alive()
    thread.join()
    assert codes == [0]
    assert run.on_the_board() == [1, 2]
    assert not track.goes_on(run.paths)
    run.paths.config.write_text("meds:\n  run_dir: .\n  lock_seconds: null\n")  # nothing is locked
    assert track.goes_on(run.paths)
    run.paths.model_complete.parent.mkdir(parents=True)
    run.paths.model_complete.touch()
    assert not track.goes_on(run.paths)


def test_a_run_that_is_sent_already_is_not_sent_twice(
    run: WrittenRun, meds: Meds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run.step(1, loss=1.0)
    with (run.paths.root / ".tracking-tensorboard.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, printed, _ = meds("track", "--once", run.paths.root)
        busy, end = printed.splitlines()
        assert code == 1
        assert busy.startswith("TensorBoard: RuntimeError: another process already sends this run")
        assert end.startswith("not everything was sent to TensorBoard")
        monkeypatch.setattr(sending, "RETRY_SECONDS", 0.1)
        thread = threading.Thread(target=main, args=(["track", str(run.paths.root)],))
        thread.start()
        thread.join(2.0)
        assert thread.is_alive()  # it waits
        assert run.on_the_board() == []
    thread.join()
    assert run.on_the_board() == [1]
    assert capsys.readouterr().out.endswith("everything is sent\n")
