"""The real W&B client and its command, with a small W&B that they send to."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meds_openrlhf.tracking.sending import Trackers
from tests.tracking.wandb_file import axes_of, read_wandb_file
from tests.tracking.wandb_server import WandbServer
from tests.tracking.written_run import KEY, WrittenRun

SECRET = "hf_abcdefghijklmnopqrst"
PROGRAM = """
import os, sys, time
from pathlib import Path
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking import sending
paths = RunPaths(Path(sys.argv[1]))
trackers = sending.Trackers(paths, ["tensorboard", "wandb"], first_step=0)
"""


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)


def sync(run: WrittenRun, server: WandbServer) -> Path:
    """Send the newest offline session to ``server``, which had nothing, with W&B's own command; returns its folder."""
    server.history.clear()
    server.summary.clear()
    server.runs.clear()
    newest = max(run.paths.root.glob("wandb/offline-run-*"), key=lambda folder: folder.stat().st_mtime)
    environment = {**os.environ, "WANDB_MODE": "online"}
    command = [sys.executable, "-m", "wandb", "sync", str(newest)]
    subprocess.run(command, check=True, capture_output=True, timeout=60, env=environment, cwd=run.paths.root)
    return newest


def drive(run: WrittenRun, end: str) -> subprocess.CompletedProcess[str]:
    """A driver that has a secret on its command line and ends with ``end``."""
    program = [sys.executable, "-c", PROGRAM + end, str(run.paths.root), "--password", SECRET]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)


def test_offline_sessions_have_all_metrics_and_no_key(
    run: WrittenRun, online: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run.write_secrets()
    run.step(1, **{"loss": 0.5, "meds/rows": 7})
    run.step(2, loss=float("nan"))
    run.evaluation(2, eval_aime_pass1=0.25)
    run.clusters(2)
    run.clusters(3, answer=None, response=None)
    assert drive(run, "trackers.finish(60)").returncode == 0
    assert not run.holds(KEY, "very-secret", SECRET)
    folder = sync(run, online)
    history = [online.history[number] for number in sorted(online.history)]
    assert [line["_step"] for line in history] == [0, 1, 2, 3, 4]
    assert [line["train/global_step"] for line in history] == [1, 2, 2, 2, 3]
    assert (history[0]["train/loss"], history[0]["train/meds/rows"]) == (0.5, 7)
    assert math.isnan(history[1]["train/loss"])
    assert (history[2]["eval/eval_aime_pass1"], history[2]["eval/global_step"]) == (0.25, 2)
    histogram = history[3]["train/meds/cluster_sizes"]
    assert (histogram["bins"], histogram["values"]) == ([1, 2, 4], [5, 7])
    assert [line["train/biggest_clusters"]["nrows"] for line in history[3:]] == [1, 1]
    (file,) = folder.glob("*.wandb")
    axes = axes_of(read_wandb_file(file))
    assert (axes["train/*"], axes["eval/*"]) == ("train/global_step", "train/global_step")
    tables = folder.glob("files/media/table/train/*.json")
    assert sorted((json.loads(table.read_text()) for table in tables), key=lambda one: one["data"]) == [
        {"columns": ["step", "prompt", "label", "size", "members", "answer", "response"], "data": [row]}
        for row in ([2, "9 + 9?", 3, 12, 4, "17", "so 17"], [3, "9 + 9?", 3, 12, 4, None, None])
    ]
    opened = online.runs[0]
    assert (opened["project"], opened["displayName"], opened["name"]) == ("fruit", "my-run", run.id())
    config = json.loads(opened["config"])
    assert config["actor"]["value"] == {"learning_rate": 1e-6}
    assert config["reward"]["value"] == {"api_key": "***", "note": "***"}
    run.resume(1)
    run.steps(2, times=10.0)
    run.send("wandb")
    sync(run, online)
    assert online.points("train/loss") == [0.5, 20.0]
    assert {one["name"] for one in online.runs} == {run.id()}


def test_a_resumed_run_goes_on_in_the_same_run_with_the_lines_that_wandb_lacks(
    run: WrittenRun, online: WandbServer
) -> None:
    run.steps(1, 2, 3)
    run.clusters(2)
    run.send("wandb")
    assert json.loads(online.runs[0]["config"])["meds"]["value"]["penalty"] == {"alpha": 0.1}
    run.resume(1)
    run.steps(2, 3, 4, times=10.0)
    run.send("wandb", first_step=1)  # the steps that it has repeated are sent again
    assert online.points("train/loss") == [1, 2, 3, 20, 30, 40]
    run.clusters(3)  # later than the metrics of its step, and of the next one
    run.send("wandb")
    run.send("wandb")
    assert online.points("train/loss") == [1, 2, 3, 20, 30, 40]
    assert len(online.points("train/biggest_clusters")) == 2
    assert {one["name"] for one in online.runs} == {run.id()}
    assert not run.holds(KEY)


def test_a_driver_that_is_killed_loses_nothing(run: WrittenRun, online: WandbServer) -> None:
    run.steps(1, 2)
    while_it_waits = "while not list(paths.root.glob('wandb/run-*/*.wandb')): time.sleep(0.05)\nos.kill(os.getpid(), 9)"
    assert drive(run, while_it_waits).returncode == -9
    run.steps(3)  # as a driver whose thread had not seen it
    run.send("wandb")
    assert sorted(set(online.points("train/loss"))) == [1, 2, 3]
    assert {one["name"] for one in online.runs} == {run.id()}


def test_a_program_ends_although_wandb_hangs(run: WrittenRun, online: WandbServer) -> None:
    online.behavior = "hangs"
    run.steps(1)
    board = "trackers.finishing.set()\nwhile trackers.left != ['W&B']: time.sleep(0.05)\n"
    ended = drive(run, f"{board}time.sleep(3)\nprint(*trackers.finish(1.0), 'torch' in sys.modules, sep='\\n')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, run.rest_of("W&B") + "\nFalse\n", "")
    online.behavior = "answers"
    online.let_go.set()
    run.send("wandb")
    assert online.points("train/loss") == [1]


def test_a_client_that_does_not_take_its_settings_is_one_line(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "a mode of another version")
    run.steps(1)
    line, rest = Trackers(run.paths, ["wandb"]).finish(60)
    assert line.startswith("W&B: ValueError: the client refuses its settings; check the WANDB_* variables. ")
    assert rest == run.rest_of("W&B")
