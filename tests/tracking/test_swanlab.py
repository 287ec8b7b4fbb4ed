"""The real SwanLab client: its offline folders read back by itself, and a small SwanLab that it sends to."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from meds_openrlhf.tracking.sending import Trackers
from tests.tracking.swanlab_server import KEY, SwanlabServer, swanlab_server
from tests.tracking.test_sending import follow_until, on_the_board
from tests.tracking.written_run import CONFIG, WrittenRun

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


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWANLAB_MODE", "offline")


def folders(run: WrittenRun) -> list[Path]:
    """The folders of the offline sessions, oldest first."""
    return sorted(run.paths.root.glob("swanlab/run-*"))


def records(folder: Path, kind: str) -> list[Any]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    reader = DataStoreReader()
    (file,) = folder.glob("*.swanlab")
    reader.open(file)
    found = [Record.FromString(content) for content in reader]
    reader.close()
    return [getattr(record, kind) for record in found if record.WhichOneof("record_type") == kind]


def points(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value.number) for one in records(folder, "scalar") if one.key == name]


def test_offline_everything_is_in_the_folder_and_no_key(run: WrittenRun, offline: None) -> None:
    run.paths.config.write_text(CONFIG + f"reward:\n  api_key: very-secret\n  note: {KEY}\n")
    run.step(1, **{"loss": 0.5, "meds/rows": 7})
    run.step(2, loss=float("nan"))
    run.evaluation(2, eval_aime_pass1=0.25)
    run.clusters(2, response="so\n17")
    run.send("swanlab")
    (folder,) = folders(run)
    (start,) = records(folder, "start")
    assert (start.id, start.project, start.name) == (run.id(), "fruit", "my-run")
    assert points(folder, "train/loss")[0] == (1, 0.5)
    assert math.isnan(points(folder, "train/loss")[1][1])
    assert points(folder, "train/meds/rows") == [(1, 7.0)]
    assert points(folder, "eval/eval_aime_pass1") == [(2, 0.25)]
    (text,) = records(folder, "media")
    assert (text.key, text.step) == ("train/biggest_clusters", 2)
    (content,) = folder.glob("media/text/*.txt")
    assert content.read_text().endswith("    so\n    17")
    config = yaml.safe_load((folder / "files/config.yaml").read_text())
    assert config["actor"]["value"] == {"learning_rate": 1e-6}
    assert config["reward"]["value"] == {"api_key": "***", "note": "***"}
    assert not run.holds(KEY, "very-secret")


def test_the_newest_offline_folder_has_the_whole_resumed_run_under_the_same_id(
    run: WrittenRun, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=float(step))
    with monkeypatch.context() as named:
        named.setenv("SWANLAB_PROJ_NAME", "vegetables")
        run.send("swanlab")
    run.resume(1)
    run.step(2, loss=20.0)
    run.send("swanlab")
    first, second = folders(run)
    assert points(first, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert points(second, "train/loss") == [(1, 1.0), (2, 20.0)]
    starts = [records(folder, "start")[0] for folder in (first, second)]
    assert [one.project for one in starts] == ["vegetables", "fruit"]
    assert {one.id for one in starts} == {run.id()}


def test_a_resumed_run_goes_on_in_the_same_run_with_the_steps_that_swanlab_lacks(
    run: WrittenRun, swanlab: SwanlabServer
) -> None:
    for step in (1, 2):
        run.step(step, loss=float(step))
    run.clusters(2)
    run.send("swanlab")
    run.resume(1)
    for step in (2, 3):
        run.step(step, loss=step * 10.0)
    run.clusters(3)
    run.send("swanlab")
    assert swanlab.points("train/loss") == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert swanlab.media == [("train/biggest_clusters", 2), ("train/biggest_clusters", 3)]
    assert [one["cuid"] for one in swanlab.experiments] == [run.id()] * 2
    assert swanlab.config["meds"]["value"]["penalty"] == {"alpha": 0.1}
    assert folders(run) == []  # the run's own files have everything
    assert not run.holds(KEY)


def test_a_swanlab_that_takes_nothing_gets_everything_when_it_is_back(run: WrittenRun, swanlab: SwanlabServer) -> None:
    swanlab.status = 503
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["swanlab"])
    rest = trackers.finish(3.0)
    assert rest == [f"not everything was sent to SwanLab. Send the rest with: meds track {run.paths.root}"]
    swanlab.status = 200
    follow_until(trackers, lambda _: trackers.left == [])
    assert swanlab.points("train/loss") == [(1, 1.0)]


def test_a_wrong_key_is_one_line_and_the_rest_goes_on(
    run: WrittenRun, swanlab: SwanlabServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run.step(1, loss=1.0)
    wrong = "wrong-key-of-swanlab"
    monkeypatch.setenv("SWANLAB_API_KEY", wrong)
    trackers = Trackers(run.paths, ["tensorboard", "swanlab"])
    (line,) = follow_until(trackers, lambda said: bool(said) and on_the_board(run) == [1])
    assert line.startswith("SwanLab: AuthenticationError: ")
    assert "check if the provided API key is correct" in line
    assert len(trackers.finish(60)) == 1
    assert folders(run) == []  # tries leave nothing behind
    assert not run.holds(wrong)
    assert capfd.readouterr() == ("", "")
