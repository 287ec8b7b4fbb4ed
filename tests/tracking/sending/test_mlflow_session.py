"""The real MLflow client: its folder's files read back by itself, and servers that refuse."""

import math
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.tracking.sending.destinations import MLFLOW_SETTINGS
from meds_openrlhf.tracking.sending.follower_process import FollowerProcess
from meds_openrlhf.tracking.sending.sender import Pace
from tests.tracking.sending.test_follower_process import follow_until, on_the_board, without_wandb
from tests.tracking.sending.written_run import CONFIG, WrittenRun

os.environ.update({**MLFLOW_SETTINGS, **os.environ})  # before the import, as in the process
mlflow = pytest.importorskip("mlflow")
session_module = pytest.importorskip("meds_openrlhf.tracking.sending.mlflow_session")

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
def address(tmp_path: Path) -> str:
    return (tmp_path / "mlflow").as_uri()


def session_of(run: WrittenRun, address: str, said: list[str] | None = None) -> Any:
    said = [] if said is None else said
    return session_module.MlflowSession(run.paths, run.config, {"MLFLOW_TRACKING_URI": address}, said.append)


def send(run: WrittenRun, address: str) -> None:
    session = session_of(run, address)
    while session.send_new():
        pass
    session.finish()


def follow(run: WrittenRun, address: str, **environment: str) -> FollowerProcess:
    full = {**without_wandb(), "MLFLOW_TRACKING_URI": address, "MLFLOW_TRACKING_TOKEN": KEY, **environment}
    return FollowerProcess(run.paths, full, Pace(0.1, 30.0, 0.5))


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


def test_a_process_sends_metrics_parameters_and_texts_and_no_key(run: WrittenRun, address: str, tmp_path: Path) -> None:
    run.paths.config.write_text(CONFIG + f"reward:\n  api_key: very-secret\n  note: {KEY}\n")
    run.step(1, **{"loss": 0.5, "meds/rows": 7, "of@odd|name": 1})
    run.step(2, loss=float("nan"))
    run.step(3, loss=float("inf"))
    run.evaluation(2, eval_aime_pass1=0.25)
    run.clusters(2, response="so\n17")
    follower = follow(run, address)
    assert follower.finish(60, 60) == []
    assert follower.has_sent_everything
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
    send(run, address)
    run.resume(1)
    run.step(2, loss=20.0)
    run.paths.config.write_text(CONFIG.replace("0.1", "0.2") + "train:\n  seed: 7\n")
    send(run, address)
    assert points(address, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)]
    (sent,) = runs_at(address)
    assert (sent.data.params["meds.penalty.alpha"], sent.data.params["train.seed"]) == ("0.1", "7")
    send(run, address)
    assert len(points(address, "train/loss")) == 4  # nothing is sent twice


def test_a_run_that_was_created_before_its_process_died_is_found(run: WrittenRun, address: str) -> None:
    run.step(1, loss=1.0)
    session_of(run, address)._open()
    send(run, address)
    assert points(address, "train/loss") == [(1, 1.0)]


def test_another_server_gets_everything_and_the_first_one_only_what_is_new(
    run: WrittenRun, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "METRICS_AT_ONCE", 2)
    for step in (1, 2, 3):
        run.step(step, loss=float(step))
    send(run, address)
    run.step(4, loss=4.0)
    send(run, address + "2")
    send(run, address)
    assert [step for step, _ in points(address, "train/loss")] == [1, 2, 3, 4]
    assert [step for step, _ in points(address + "2", "train/loss")] == [1, 2, 3, 4]


def test_without_anything_to_send_no_run_is_opened(run: WrittenRun, address: str, tmp_path: Path) -> None:
    send(run, address)
    assert not list((tmp_path / "mlflow").rglob("tags"))


def test_texts_that_cannot_be_stored_are_said_once_and_metrics_are_sent(
    run: WrittenRun, address: str, tmp_path: Path
) -> None:
    (tmp_path / "in_the_way").write_text("")
    client_of(address).create_experiment("fruit", artifact_location=f"{tmp_path}/in_the_way/folder")
    run.clusters(1)
    run.clusters(2)
    run.step(2, loss=1.0)
    said: list[str] = []
    session = session_of(run, address, said)
    assert session.send_new()
    (line,) = said
    assert line.startswith("MLflow: the texts of the largest clusters are not sent: NotADirectoryError")
    assert points(address, "train/loss") == [(2, 1.0)]


def test_a_server_that_refuses_the_key_is_one_line_and_the_rest_goes_on(run: WrittenRun, refusing: int) -> None:
    run.step(1, loss=1.0)
    password = "swordfish-of-mine"
    follower = follow(run, f"http://someone:{password}@127.0.0.1:{refusing}", MLFLOW_TRACKING_TOKEN=KEY)
    log = run.paths.tracking_log
    said = follow_until(follower, lambda _: on_the_board(run) == [1] and log.read_text().count("401") >= 2)
    follower.finish(0.2, 0.2)
    (line,) = said
    assert line.startswith("MLflow: ")
    assert "401" in line
    assert "training goes on" in line
    files = [path.read_bytes() for path in run.paths.root.rglob("*") if path.is_file()]
    assert not any(secret.encode() in content for content in files for secret in (KEY, password))
