"""The real W&B client: in its offline mode, its files read back, and with a small W&B of our own."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from meds_openrlhf.tracking.sending import Trackers
from tests.tracking.wandb_file import axes_of, history_of, read_wandb_file
from tests.tracking.wandb_server import WandbServer
from tests.tracking.written_run import CONFIG, WrittenRun

KEY = "b7" * 20


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)


@pytest.fixture
def online(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> WandbServer:
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    return server


def sessions(run: WrittenRun) -> list[list[Any]]:
    """The records of each session, oldest first."""
    files = run.paths.root.glob("wandb/offline-run-*/*.wandb")
    return [read_wandb_file(path) for path in sorted(files, key=lambda path: path.stat().st_mtime)]


def kinds(records: list[Any], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def test_everything_is_there_under_openrlhfs_names_on_one_axis(run: WrittenRun, offline: None) -> None:
    run.paths.config.write_text(CONFIG + f"reward:\n  api_key: very-secret\n  note: {KEY}\n")
    run.step(1, **{"loss": 0.5, "meds/rows": 7})
    run.step(2, loss=float("nan"))
    run.evaluation(2, eval_aime_pass1=0.25)
    run.clusters(2)
    run.clusters(3, answer=None, response=None)
    run.send("wandb")
    (records,) = sessions(run)
    history = history_of(records)
    assert [line["_step"] for line in history] == [0, 1, 2, 3, 4]
    assert [line["train/global_step"] for line in history] == [1, 2, 2, 2, 3]
    assert history[0]["train/loss"] == 0.5
    assert history[0]["train/meds/rows"] == 7
    assert math.isnan(history[1]["train/loss"])
    assert history[2]["eval/eval_aime_pass1"] == 0.25
    assert history[2]["eval/global_step"] == 2
    histogram = history[3]["train/meds/cluster_sizes"]
    assert (histogram["bins"], histogram["values"]) == ([1, 2, 4], [5, 7])
    assert [line["train/biggest_clusters"]["nrows"] for line in history[3:]] == [1, 1]
    axes = axes_of(records)
    assert (axes["train/*"], axes["eval/*"]) == ("train/global_step", "train/global_step")
    tables = run.paths.root.glob("wandb/offline-run-*/files/media/table/train/*.json")
    assert sorted((json.loads(table.read_text()) for table in tables), key=lambda one: one["data"]) == [
        {"columns": ["step", "prompt", "label", "size", "members", "answer", "response"], "data": [row]}
        for row in ([2, "9 + 9?", 3, 12, 4, "17", "so 17"], [3, "9 + 9?", 3, 12, 4, None, None])
    ]
    (opened,) = kinds(records, "run")[:1]
    assert (opened.project, opened.display_name) == ("fruit", "my-run")
    assert opened.run_id == run.id()
    config = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in opened.config.update}
    assert config["actor"] == {"learning_rate": 1e-6}
    assert config["reward"] == {"api_key": "***", "note": "***"}
    assert not run.holds(KEY, "very-secret")


def test_each_offline_session_has_the_whole_run_under_the_same_id_which_the_environment_may_name(
    run: WrittenRun, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=float(step))
    with monkeypatch.context() as named:
        for name, value in {"WANDB_RUN_ID": "mine", "WANDB_PROJECT": "vegetables", "WANDB_NAME": "carrot"}.items():
            named.setenv(name, value)
        run.send("wandb")
    run.resume(1)
    run.step(2, loss=20.0)
    run.send("wandb", first_step=1)
    first, second = sessions(run)
    assert [line["train/loss"] for line in history_of(first)] == [1.0, 2.0, 3.0]
    assert [line["train/loss"] for line in history_of(second)] == [1.0, 20.0]
    opened = [kinds(records, "run")[0] for records in (first, second)]
    found = [(one.run_id, one.project, one.display_name) for one in opened]
    assert found == [("mine", "vegetables", "carrot"), ("mine", "fruit", "my-run")]


def test_a_resumed_run_goes_on_in_the_same_run_with_the_lines_that_wandb_lacks(
    run: WrittenRun, online: WandbServer
) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=float(step))
    run.clusters(2)
    run.send("wandb")
    assert json.loads(online.runs[0]["config"])["meds"]["value"]["penalty"] == {"alpha": 0.1}
    run.resume(1)
    for step in (2, 3, 4):
        run.step(step, loss=step * 10.0)
    run.send("wandb", first_step=1)  # the steps that it has repeated are sent again
    assert online.points("train/loss") == [1, 2, 3, 20, 30, 40]
    run.clusters(3)  # later than the metrics of its step, and of the next one
    run.send("wandb")
    run.send("wandb")
    assert online.points("train/loss") == [1, 2, 3, 20, 30, 40]
    assert len(online.points("train/biggest_clusters")) == 2
    assert {one["name"] for one in online.runs} == {run.id()}
    assert not run.holds(KEY)


PROGRAM = """
import os, sys, time
from pathlib import Path
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking import sending
paths = RunPaths(Path(sys.argv[1]))
trackers = sending.Trackers(paths, ["tensorboard", "wandb"], first_step=0)
"""


def test_a_driver_that_is_killed_loses_nothing(run: WrittenRun, online: WandbServer) -> None:
    for step in (1, 2):
        run.step(step, loss=float(step))
    while_it_waits = "while not list(paths.root.glob('wandb/run-*/*.wandb')): time.sleep(0.05)\nos.kill(os.getpid(), 9)"
    program = [sys.executable, "-c", PROGRAM + while_it_waits, str(run.paths.root)]
    assert subprocess.run(program, check=False, timeout=60).returncode == -9
    run.step(3, loss=3.0)  # as a driver whose thread had not seen it
    run.send("wandb")
    assert sorted(set(online.points("train/loss"))) == [1, 2, 3]
    assert {one["name"] for one in online.runs} == {run.id()}


def test_a_program_ends_although_wandb_hangs(run: WrittenRun, online: WandbServer) -> None:
    online.behaviour = "hangs"
    run.step(1, loss=1.0)
    at_the_end = "time.sleep(3)\nprint(*trackers.finish(1.0), sep='\\n')"
    program = [sys.executable, "-c", PROGRAM + at_the_end, str(run.paths.root), "--password", "hf_abcdefghijklmnopqrst"]
    ended = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == f"not everything was sent to W&B. Send the rest with: meds track {run.paths.root}\n"
    assert ended.stderr == ""
    online.behaviour = "answers"
    online.let_go.set()
    run.send("wandb")
    assert online.points("train/loss") == [1]


def test_the_command_line_is_not_sent(run: WrittenRun, offline: None) -> None:
    run.step(1, loss=1.0)
    secret = "hf_abcdefghijklmnopqrst"
    program = [sys.executable, "-c", PROGRAM + "trackers.finish(60)", str(run.paths.root), "--password", secret]
    subprocess.run(program, check=True, timeout=60)
    assert len(sessions(run)) == 1
    assert not run.holds(secret)


def test_a_client_that_does_not_take_its_settings_is_one_line(
    run: WrittenRun, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "a mode of another version")
    run.step(1, loss=1.0)
    line, rest = Trackers(run.paths, ["wandb"]).finish(60)
    assert line.startswith("W&B: ValueError: its client refuses its settings; check the WANDB_* variables. ")
    assert rest == f"not everything was sent to W&B. Send the rest with: meds track {run.paths.root}"
