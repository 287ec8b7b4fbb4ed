"""The real MLflow client: its folder's files read back by itself, and servers that refuse."""

import math
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.tracking.sending import Trackers
from meds_openrlhf.tracking.trackers import TRACKERS, TrackedRun
from tests.tracking.test_sending import follow_until, on_the_board
from tests.tracking.written_run import CONFIG, WrittenRun

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before the import
mlflow = pytest.importorskip("mlflow")

KEY = "b7" * 20


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b"bad key")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[int]:
    """The port of a server that takes no key."""
    server = HTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", KEY)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # for this test's own client
    return os.environ["MLFLOW_TRACKING_URI"]


def client_of(address: str) -> Any:
    return mlflow.MlflowClient(address)


def runs_at(address: str, experiment: str = "fruit") -> list[Any]:
    client = client_of(address)
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))


def points(address: str, name: str) -> list[tuple[int, float]]:
    """Step and value of a metric of the only run, in the order in which they were sent."""
    (run,) = runs_at(address)
    history = client_of(address).get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in history]


def test_a_session_sends_metrics_parameters_and_texts_and_no_key(run: WrittenRun, address: str, tmp_path: Path) -> None:
    run.paths.config.write_text(CONFIG + f"reward:\n  api_key: very-secret\n  note: {KEY}\n")
    run.step(1, **{"loss": 0.5, "meds/rows": 7, "of@odd|name": 1})
    run.step(2, loss=float("nan"))
    run.step(3, loss=float("inf"))
    run.evaluation(2, eval_aime_pass1=0.25)
    run.clusters(2, response="so\n17")
    run.send("mlflow")
    (sent,) = runs_at(address)
    assert (sent.info.run_name, sent.info.status) == ("my-run", "FINISHED")
    assert sent.data.params == {
        "meds.run_dir": "runs/my-run", "meds.penalty.alpha": "0.1", "actor.learning_rate": "1e-06",
        "logger.wandb.project": "fruit", "reward.api_key": "***", "reward.note": "***",
    }  # fmt: skip
    loss = points(address, "train/loss")
    assert (loss[0], loss[2]) == ((1, 0.5), (3, math.inf))
    assert math.isnan(loss[1][1])
    assert points(address, "train/meds/rows") == [(1, 7.0)]
    assert points(address, "train/of_odd_name") == [(1, 1.0)]
    assert points(address, "eval/eval_aime_pass1") == [(2, 0.25)]
    text = Path(client_of(address).download_artifacts(sent.info.run_id, "biggest_clusters/step_000002.md")).read_text()
    assert text.startswith("**size 12**")
    assert text.endswith("    so\n    17")
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != run.paths.config]
    assert len(written) > 10
    assert not any(KEY.encode() in content or b"very-secret" in content for content in written)


def test_a_resumed_run_goes_on_in_the_same_run(run: WrittenRun, address: str) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=float(step))
    run.send("mlflow")
    run.resume(1)
    run.step(2, loss=20.0)
    run.paths.config.write_text(CONFIG.replace("0.1", "0.2") + "train:\n  seed: 7\n")
    run.send("mlflow", first_step=1)
    assert points(address, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)]
    (sent,) = runs_at(address)
    assert (sent.data.params["meds.penalty.alpha"], sent.data.params["train.seed"]) == ("0.1", "7")
    run.send("mlflow")
    assert len(points(address, "train/loss")) == 4  # nothing is sent twice


def test_a_run_that_was_created_before_its_process_died_is_found(run: WrittenRun, address: str) -> None:
    run.step(1, loss=1.0)
    TRACKERS["mlflow"][1](TrackedRun(run.paths, print))
    run.send("mlflow")
    assert points(address, "train/loss") == [(1, 1.0)]


def test_another_server_gets_everything_and_the_first_one_only_what_is_new(
    run: WrittenRun, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=float(step))
    run.send("mlflow")
    run.step(4, loss=4.0)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("MLFLOW_TRACKING_URI", address + "2")
        run.send("mlflow")
    run.send("mlflow")
    assert [step for step, _ in points(address, "train/loss")] == [1, 2, 3, 4]
    assert [step for step, _ in points(address + "2", "train/loss")] == [1, 2, 3, 4]


def test_without_anything_to_send_no_run_is_opened(run: WrittenRun, address: str, tmp_path: Path) -> None:
    run.send("mlflow")
    assert not list((tmp_path / "mlflow").rglob("tags"))


def test_texts_that_cannot_be_stored_are_said_once_and_metrics_are_sent(
    run: WrittenRun, address: str, tmp_path: Path
) -> None:
    (tmp_path / "in_the_way").write_text("")
    client_of(address).create_experiment("fruit", artifact_location=f"{tmp_path}/in_the_way/folder")
    run.clusters(1)
    run.clusters(2)
    run.step(2, loss=1.0)
    trackers = Trackers(run.paths, ["mlflow"])
    (line,) = trackers.finish(60)
    assert line.startswith("MLflow: the texts of the largest clusters are not sent: NotADirectoryError")
    assert trackers.left == []
    assert points(address, "train/loss") == [(2, 1.0)]


def test_more_metrics_than_a_call_may_have_are_sent_in_parts(run: WrittenRun, address: str) -> None:
    for step in (1, 2, 3):
        run.step(step, **{f"metric_{number}": float(number) for number in range(400)})
    run.send("mlflow")
    assert points(address, "train/metric_399") == [(1, 399.0), (2, 399.0), (3, 399.0)]


def test_a_server_that_refuses_the_key_is_one_line_and_the_rest_goes_on(
    run: WrittenRun, refusing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.step(1, loss=1.0)
    password = "swordfish-of-mine"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:{password}@127.0.0.1:{refusing}")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", KEY)
    trackers = Trackers(run.paths, ["tensorboard", "mlflow"])
    (line,) = follow_until(trackers, lambda said: bool(said) and on_the_board(run) == [1])
    assert line.startswith("MLflow: ")
    assert "401" in line
    assert "Training continues" in line
    rest = f"not everything was sent to MLflow. Send the rest with: meds track {run.paths.root}"
    assert trackers.finish(60) == [rest]
    assert not run.holds(KEY, password)
