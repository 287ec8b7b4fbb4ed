"""The real MLflow client: its folder's files read back by itself, and a server that refuses."""

import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.tracking.sending import Trackers
from tests.processes import DEADLINE, answers, free_ports, running
from tests.tracking.wandb_server import WandbServer
from tests.tracking.written_run import CONFIG, KEY, WrittenRun, follow_until

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before the import
mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", KEY)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # for this test's own client
    return os.environ["MLFLOW_TRACKING_URI"]


def only_run(address: str) -> tuple[Any, Any]:
    """The client and the only run of the experiment."""
    client = mlflow.MlflowClient(address)
    (run,) = client.search_runs([client.get_experiment_by_name("fruit").experiment_id])
    return client, run


def points(address: str, name: str) -> list[tuple[int, float]]:
    """Step and value of a metric, in the order in which they were sent."""
    client, run = only_run(address)
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]


def test_a_session_sends_metrics_parameters_and_texts_and_no_key(run: WrittenRun, address: str, tmp_path: Path) -> None:
    run.write_secrets()
    run.step(1, **{"loss": 0.5, "meds/rows": 7, "of@odd|name": 1})
    run.step(2, loss=float("nan"))
    run.step(3, loss=float("inf"), **{f"metric_{number}": 1.0 for number in range(1200)})  # more than a call may have
    run.evaluation(2, eval_aime_pass1=0.25)
    run.clusters(2, response="so\n17")
    run.send("mlflow")
    client, sent = only_run(address)
    assert (sent.info.run_name, sent.info.status) == ("my-run", "FINISHED")
    assert sent.data.params == {
        "meds.run_dir": "runs/my-run", "meds.penalty.alpha": "0.1", "actor.learning_rate": "1e-06",
        "logger.wandb.project": "fruit", "reward.api_key": "***", "reward.note": "***",
    }  # fmt: skip
    loss = points(address, "train/loss")
    assert (loss[0], loss[2]) == ((1, 0.5), (3, math.inf))
    assert math.isnan(loss[1][1])
    assert points(address, "train/metric_1199") == [(3, 1.0)]
    assert points(address, "train/meds/rows") == [(1, 7.0)]
    assert points(address, "train/of_odd_name") == [(1, 1.0)]
    assert points(address, "eval/eval_aime_pass1") == [(2, 0.25)]
    text = Path(client.download_artifacts(sent.info.run_id, "biggest_clusters/step_000002.md")).read_text()
    assert text.startswith("**size 12**")
    assert text.endswith("    so\n    17")
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != run.paths.config]
    assert not any(KEY.encode() in content or b"very-secret" in content for content in written)


def test_a_resumed_run_goes_on_in_the_same_run_and_another_server_gets_all(
    run: WrittenRun, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.steps(1, 2, 3)
    run.send("mlflow")
    run.resume(1)
    run.steps(2, times=10.0)
    run.paths.config.write_text(CONFIG.replace("0.1", "0.2") + "train:\n  seed: 7\n")
    run.send("mlflow", first_step=1)
    run.send("mlflow")  # nothing is sent twice
    assert points(address, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)]
    params = only_run(address)[1].data.params
    assert (params["meds.penalty.alpha"], params["train.seed"]) == ("0.1", "7")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address + "2")
    run.send("mlflow")
    assert points(address + "2", "train/loss") == [(1, 1.0), (2, 20.0)]


@pytest.mark.slow
def test_a_run_and_its_resume_are_one_run_of_a_real_server(
    run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow.server.handlers", reason="mlflow-skinny has no server")
    (port,) = free_ports(1)
    place = ["--backend-store-uri", f"sqlite:///{tmp_path}/ml.db", "--artifacts-destination", f"{tmp_path}/artifacts"]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", *place]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address := f"http://127.0.0.1:{port}")
    quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with running(command, tmp_path / "server.log", lambda: answers(f"{address}/health"), quiet):
        run.steps(1, 2, 3)
        run.clusters(2, response="so 17")
        assert Trackers(run.paths, ["mlflow"]).finish(240) == [], run.paths.tracking_log.read_text()
        run.resume(1)
        run.steps(2, times=10.0)
        assert Trackers(run.paths, ["mlflow"], first_step=1).finish(240) == [], run.paths.tracking_log.read_text()
        client, sent = only_run(address)
        assert (sent.info.run_name, sent.info.status) == ("my-run", "FINISHED")
        assert sent.data.params["meds.penalty.alpha"] == "0.1"
        assert points(address, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0)]
        text = client.download_artifacts(sent.info.run_id, "biggest_clusters/step_000002.md")
        assert Path(text).read_text().endswith("so 17")


def test_metrics_are_sent_without_texts_that_cannot_be_stored(run: WrittenRun, address: str, tmp_path: Path) -> None:
    (tmp_path / "in_the_way").write_text("")
    mlflow.MlflowClient(address).create_experiment("fruit", artifact_location=f"{tmp_path}/in_the_way/folder")
    run.clusters(1)
    run.clusters(2)
    run.steps(2)
    run.send("mlflow")
    log = run.paths.tracking_log.read_text()
    assert log.count("MLflow: the texts of the largest clusters are not sent") == 1
    assert "NotADirectoryError" in log
    assert points(address, "train/loss") == [(2, 2.0)]


def test_a_server_that_refuses_the_key_is_one_line_and_the_rest_goes_on(
    run: WrittenRun, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.behavior = "refuses"
    run.steps(1)
    password = "swordfish-of-mine"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url.replace("//", f"//someone:{password}@"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", KEY)
    trackers = Trackers(run.paths, ["tensorboard", "mlflow"])
    (line,) = follow_until(trackers, lambda said: bool(said) and run.on_the_board() == [1])
    assert line.startswith("MLflow: ")
    assert "bad key" in line
    assert trackers.finish(DEADLINE) == [run.rest_of("MLflow")]
    assert not run.holds(KEY, password)
