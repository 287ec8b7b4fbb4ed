"""The real SwanLab client and its command, with a small SwanLab that they send to."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meds_openrlhf.tracking.sending import Trackers
from tests.processes import DEADLINE
from tests.tracking.swanlab_server import SwanlabServer, swanlab_server
from tests.tracking.written_run import KEY, WrittenRun, follow_until

pytest.importorskip("swanlab")


@pytest.fixture(autouse=True)
def _key(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither a key of this machine's user nor settings of this folder.
    monkeypatch.setenv("SWANLAB_API_KEY", KEY)
    monkeypatch.setenv("SWANLAB_ROOT", str(run.paths.root / "no"))


@pytest.fixture
def swanlab(monkeypatch: pytest.MonkeyPatch) -> Iterator[SwanlabServer]:
    with swanlab_server() as running:
        monkeypatch.setenv("SWANLAB_API_HOST", running.url)
        yield running


def folders(run: WrittenRun) -> list[Path]:
    """The folders of the offline sessions, oldest first."""
    return sorted(run.paths.root.glob("swanlab/run-*"))


def sync(run: WrittenRun, folder: Path, server: SwanlabServer) -> None:
    """Send an offline session to ``server``, which forgets what it had, with SwanLab's own command."""
    server.points.clear()
    command = [str(Path(sys.executable).with_name("swanlab")), "sync", str(folder), "--id", run.id()]
    subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=run.paths.root)


def test_offline_the_newest_folder_has_the_whole_resumed_run_and_no_key(
    run: WrittenRun, swanlab: SwanlabServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    run.write_secrets()
    run.step(1, **{"loss": 0.5, "meds/rows": 7})
    run.step(2, loss=float("nan"))
    run.evaluation(2, eval_aime_pass1=0.25)
    run.clusters(2, response="so\n17")
    run.send("swanlab")
    run.resume(1)
    run.steps(2, times=10.0)
    run.send("swanlab")
    assert not run.holds(KEY, "very-secret")
    monkeypatch.delenv("SWANLAB_MODE")
    first, second = folders(run)
    sync(run, first, swanlab)
    assert swanlab.points["train/loss"] == [(1, 0.5), (2, "nan")]
    assert swanlab.points["train/meds/rows"] == [(1, 7.0)]
    assert swanlab.points["eval/eval_aime_pass1"] == [(2, 0.25)]
    assert [step for step, _ in swanlab.points["train/biggest_clusters"]] == [2]
    (content,) = first.glob("media/text/*.txt")
    assert content.read_text().endswith("    so\n    17")
    assert swanlab.config["actor"]["value"] == {"learning_rate": 1e-6}
    assert swanlab.config["reward"]["value"] == {"api_key": "***", "note": "***"}
    sync(run, second, swanlab)
    assert swanlab.points["train/loss"] == [(1, 0.5), (2, 20.0)]
    assert [(one["cuid"], one["name"]) for one in swanlab.experiments] == [(run.id(), "my-run")] * 2


def test_resumed_run_continues_the_same_swanlab_run(run: WrittenRun, swanlab: SwanlabServer) -> None:
    run.steps(1, 2)
    run.clusters(2)
    run.send("swanlab")
    run.resume(1)
    run.steps(2, 3, times=10.0)
    run.clusters(3)
    run.send("swanlab")
    assert swanlab.points["train/loss"] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert [step for step, _ in swanlab.points["train/biggest_clusters"]] == [2, 3]
    assert [one["cuid"] for one in swanlab.experiments] == [run.id()] * 2
    assert swanlab.config["meds"]["value"]["penalty"] == {"alpha": 0.1}
    assert folders(run) == []  # the run's own files have everything
    assert not run.holds(KEY)


def test_a_wrong_key_is_one_line_and_the_rest_goes_on(
    run: WrittenRun, swanlab: SwanlabServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run.steps(1)
    monkeypatch.setenv("SWANLAB_API_KEY", "wrong-key-of-swanlab")
    trackers = Trackers(run.paths, ["tensorboard", "swanlab"])
    (line,) = follow_until(trackers, lambda said: bool(said) and run.on_the_board() == [1])
    assert line.startswith("SwanLab: AuthenticationError: ")
    assert "check if the provided API key is correct" in line
    assert len(trackers.finish(DEADLINE)) == 1
    assert folders(run) == []  # tries leave nothing behind
    assert not run.holds("wrong-key-of-swanlab")
    assert capfd.readouterr() == ("", "")
