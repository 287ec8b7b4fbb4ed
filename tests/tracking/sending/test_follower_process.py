"""The process that follows a run, with a W&B that answers, is slow, hangs or refuses."""

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from meds_openrlhf import processes
from meds_openrlhf.tracking.sending import follower_process
from meds_openrlhf.tracking.sending.follower_process import FollowerProcess, following_process
from meds_openrlhf.tracking.sending.sender import Pace
from tests.ports import silent_address
from tests.tracking.sending.wandb_server import WandbServer
from tests.tracking.sending.written_run import WrittenRun

KEY = "c3" * 20
DEADLINE = 60.0  # of a test that hangs


def without_wandb() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}


def environment(url: str) -> dict[str, str]:
    return {**without_wandb(), "WANDB_BASE_URL": url, "WANDB_API_KEY": KEY}


def follower_of(run: WrittenRun, url: str, patience: float = 30.0) -> FollowerProcess:
    return FollowerProcess(run.paths, environment(url), Pace(0.1, patience, 0.5))


def follow_until(follower: FollowerProcess, happened: Callable[[list[str]], bool]) -> list[str]:
    """What was said until something happened, which may be that something was said."""
    said, deadline = follower.poll(), time.monotonic() + DEADLINE
    while not happened(said):
        assert time.monotonic() < deadline, said
        said += follower.poll()
        time.sleep(0.05)
    return said + follower.poll()


def on_the_board(run: WrittenRun) -> list[int]:
    if not run.tensorboard.exists():
        return []
    accumulator = EventAccumulator(str(run.tensorboard))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return [event.step for event in accumulator.Scalars("train/loss")] if "train/loss" in tags else []


def processes_of(run: WrittenRun) -> list[str]:
    """What is running for this run's folder: the follower, and W&B's own process, which starts within it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text().replace("\0", " ")
            marked = f"TEST_RUN={run.paths.root}" in (process / "environ").read_text()
        except OSError:
            continue
        if marked and command:
            found.append(f"{process.name} {command}")
    return found


@pytest.fixture(autouse=True)
def _marked(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TEST_RUN", str(run.paths.root))
    yield
    left = processes_of(run)
    for process in left:  # of a test that failed
        with suppress(ProcessLookupError):
            os.kill(int(process.split()[0]), signal.SIGKILL)
    assert left == []


def rest_of(run: WrittenRun) -> str:
    return f"not everything is sent yet; the rest goes with: meds track {run.paths.root}"


def test_everything_goes_to_both_however_slowly_wandb_takes_it(run: WrittenRun, server: WandbServer) -> None:
    server.delay = 0.1
    run.step(1, loss=1.0)
    follower = follower_of(run, server.url)
    said = follow_until(follower, lambda _: bool(server.runs) and on_the_board(run) == [1])
    run.step(2, loss=2.0)
    run.clusters(2)
    assert follow_until(follower, lambda _: on_the_board(run) == [1, 2]) == said == []
    run.evaluation(2, pass1=0.5)
    assert follower.finish(DEADLINE, DEADLINE) == []
    assert server.points("train/loss") == [1, 2]
    assert server.points("eval/pass1") == [0.5]
    assert [table["nrows"] for table in server.points("train/biggest_clusters")] == [1]
    assert server.runs[0]["project"] == "fruit"
    assert json.loads(server.runs[0]["config"])["meds"]["value"]["penalty"] == {"alpha": 0.1}
    assert follower.has_sent_everything
    assert not any(KEY.encode() in path.read_bytes() for path in run.paths.root.rglob("*") if path.is_file())


def test_a_wandb_that_hangs_is_said_once_and_holds_nothing_up(run: WrittenRun, server: WandbServer) -> None:
    server.behaviour = "hangs"
    run.step(1, loss=1.0)
    follower = follower_of(run, server.url, patience=1.0)
    said = follow_until(follower, lambda said: on_the_board(run) == [1] and bool(said))
    run.step(2, loss=2.0)
    said += follow_until(follower, lambda _: on_the_board(run) == [1, 2])
    assert said == [
        "W&B: no answer for 1 s; training goes on. What is missing is sent when it works again, or by: "
        f"meds track {run.paths.root}"
    ]
    started = time.monotonic()
    assert follower.finish(DEADLINE, 1.0) == [rest_of(run)]  # in vain: it need not wait for the deadline
    assert time.monotonic() < started + DEADLINE / 2
    assert processes_of(run) == []
    server.let_go.set()
    server.behaviour = "answers"
    later = follower_of(run, server.url)
    assert later.finish(DEADLINE, DEADLINE) == []
    assert server.points("train/loss") == [1, 2]
    assert on_the_board(run) == [1, 2]


def test_a_wandb_that_comes_back_gets_everything(run: WrittenRun, server: WandbServer) -> None:
    server.behaviour = "hangs"
    run.step(1, loss=1.0)
    follower = follower_of(run, server.url, patience=3.0)  # more than a question takes of a W&B that is back
    said = follow_until(follower, bool)
    server.behaviour = "answers"
    server.let_go.set()
    said += follow_until(follower, lambda said: bool(server.runs) and bool(said))
    assert said[0].startswith("W&B: no answer")
    assert said[1:] == ["W&B: sending works again"]
    assert follower.finish(DEADLINE, DEADLINE) == []
    assert server.points("train/loss") == [1]


def test_a_wandb_that_refuses_is_said_once_without_the_key_and_tried_again(
    run: WrittenRun, server: WandbServer
) -> None:
    server.behaviour = "refuses"
    run.step(1, loss=1.0)
    follower = follower_of(run, server.url)
    log = run.paths.tracking_log
    said = follow_until(follower, lambda _: on_the_board(run) == [1] and log.read_text().count("CommError") >= 2)
    (line,) = said
    assert line.startswith("W&B: CommError: ")
    assert "error 401" in line
    assert "bad key" in line
    server.behaviour = "answers"
    assert follow_until(follower, bool) == ["W&B: sending works again"]
    assert follower.finish(DEADLINE, DEADLINE) == []
    assert server.points("train/loss") == [1]
    files = [path.read_bytes() for path in run.paths.root.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in content for content in files)


def test_where_nobody_listens_tensorboard_goes_on(run: WrittenRun) -> None:
    with silent_address() as address:
        run.step(1, loss=1.0)
        follower = follower_of(run, address, patience=1.0)
        said = follow_until(follower, bool)
        run.step(2, loss=2.0)
        said += follow_until(follower, lambda _: on_the_board(run) == [1, 2])
        assert [line[:18] for line in said] == ["W&B: no answer for"]
        assert follower.finish(0.5, DEADLINE) == [rest_of(run)]


def test_a_killed_process_is_started_again_and_goes_on(run: WrittenRun, server: WandbServer) -> None:
    run.step(1, loss=1.0)
    follower = follower_of(run, server.url)
    follow_until(follower, lambda _: bool(server.runs) and on_the_board(run) == [1])
    assert follower._process is not None
    os.kill(follower._process.pid, signal.SIGKILL)
    run.step(2, loss=2.0)
    said = follow_until(follower, lambda _: on_the_board(run) == [1, 2])
    log = run.paths.tracking_log
    assert said == [f"the process that sends metrics ended (-9, see {log}); it is started again"]
    assert follower.finish(DEADLINE, 1.0) == []  # it is not stuck any more, so the end waits for it
    assert sorted(set(server.points("train/loss"))) == [1, 2]


def test_the_block_of_a_training_run_ends_with_everything_sent(
    run: WrittenRun, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_process, "FINISH_SECONDS", DEADLINE)
    said: list[str] = []

    def train() -> None:
        with following_process(run.paths, environment(server.url), said.append) as follower:
            run.step(1, loss=1.0)
            assert follower.poll() == []
            raise KeyError("training failed")

    with pytest.raises(KeyError, match="training failed"):
        train()
    assert said == []
    assert server.points("train/loss") == [1]
    assert on_the_board(run) == [1]


def test_files_that_cannot_be_written_are_said_and_written_when_they_can(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    run.paths.tensorboard.write_text("a file in the way")
    follower = FollowerProcess(run.paths, without_wandb(), Pace(0.1, 30.0, 0.1))
    (said,) = follow_until(follower, bool)
    assert said.startswith("TensorBoard: NotADirectoryError: ")
    run.paths.tensorboard.unlink()
    assert follow_until(follower, bool) == ["TensorBoard: sending works again"]
    assert follower.finish(DEADLINE, DEADLINE) == []
    assert on_the_board(run) == [1]


def test_a_process_that_fails_is_said_once_and_its_log_named(run: WrittenRun) -> None:
    run.paths.config.write_text("meds: [no configuration]\n")
    follower = FollowerProcess(run.paths, without_wandb(), Pace(0.1, 30.0, 0.1))
    log = run.paths.tracking_log
    said = follow_until(follower, lambda _: log.exists() and log.read_text().count("ConfigError:") >= 2)
    ended = f"the process that sends metrics ended (1, see {log}); it is started again"
    assert said == [ended]
    assert follower.finish(DEADLINE, 0.1) == [rest_of(run)]
    assert follower.is_done


def test_a_process_that_cannot_be_started_is_said_and_tried_again(
    run: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, tries = subprocess.Popen, []

    def sometimes(*given: Any, **named: Any) -> Any:
        tries.append(given)
        if len(tries) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return start(*given, **named)

    monkeypatch.setattr(subprocess, "Popen", sometimes)
    run.step(1, loss=1.0)
    follower = FollowerProcess(run.paths, without_wandb(), Pace(0.1, 30.0, 0.1))
    said = follow_until(follower, lambda _: on_the_board(run) == [1])
    reason = "[Errno 24] Too many open files"
    assert said == [f"the process that sends metrics cannot be started ({reason}); it is tried again"]
    assert follower.finish(DEADLINE, DEADLINE) == []


def test_a_driver_that_cannot_look_for_a_family_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no_more(family: str) -> list[int]:
        asked.append(family)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(processes, "family_members", no_more)
    monkeypatch.setattr(processes, "TRIES", 2)
    processes.end_family("a")
    assert asked == ["a", "a"]


def test_a_client_that_does_not_take_its_settings_is_said(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    env = {**environment("http://127.0.0.1:9"), "WANDB_MODE": "a mode of another version"}
    follower = FollowerProcess(run.paths, env, Pace(0.1, 30.0, 0.5))
    (said,) = follow_until(follower, lambda said: bool(said) and on_the_board(run) == [1])
    assert said.startswith("W&B: ValueError: its client does not take mode; check the WANDB_* variables; training")
    assert follower.finish(DEADLINE, 0.1) == [rest_of(run)]


@pytest.mark.parametrize(
    ("name", "package", "variables"),
    [
        ("SwanLab", "swanlab", {"SWANLAB_MODE": "offline"}),
        ("MLflow", "mlflow", {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}),
    ],
)
def test_a_trackers_missing_package_is_one_line_that_names_its_extra(
    run: WrittenRun, tmp_path: Path, name: str, package: str, variables: dict[str, str]
) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('No module', name={package!r})")
    run.step(1, loss=1.0)
    env = {**without_wandb(), **variables, "PYTHONPATH": str(tmp_path)}
    follower = FollowerProcess(run.paths, env, Pace(0.1, 30.0, 0.1))
    (said,) = follow_until(follower, lambda said: bool(said) and on_the_board(run) == [1])
    how = f"{package} is not installed; pip install 'meds-openrlhf[{package}]'"
    assert said.startswith(f"{name}: ModuleNotFoundError: {how}; training goes on.")
    assert follower.finish(DEADLINE, 0.1) == [rest_of(run)]


def test_a_deserted_process_sends_what_is_there_and_ends(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    follower = FollowerProcess(run.paths, without_wandb())
    follow_until(follower, lambda _: follower._process is not None)
    process = follower._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()  # as at the death of the driver
    follow_until(follower, lambda _: follower.is_done)
    assert on_the_board(run) == [1]


def test_a_run_that_is_resumed_meanwhile_goes_on_without_a_word(run: WrittenRun, server: WandbServer) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=float(step))
    follower = follower_of(run, server.url)
    follow_until(follower, lambda _: len(server.points("train/loss")) == 3 and on_the_board(run) == [1, 2, 3])
    run.resume(1)
    run.step(2, loss=20.0)
    assert follow_until(follower, lambda _: on_the_board(run) == [1, 2]) == []
    assert follower.finish(DEADLINE, DEADLINE) == []
    assert server.points("train/loss")[-1] == 20.0
    assert len({one["name"] for one in server.runs}) == 1
