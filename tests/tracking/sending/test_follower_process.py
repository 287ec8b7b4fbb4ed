"""The processes that follow a run, with a W&B that answers, is slow, hangs or refuses."""

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from meds_openrlhf import processes
from meds_openrlhf.processes import MARK
from meds_openrlhf.tracking.sending import follower_process
from meds_openrlhf.tracking.sending.follower import AGAIN
from meds_openrlhf.tracking.sending.follower_process import FollowerProcesses, following_process, tasks_for
from tests.ports import silent_address
from tests.tracking.sending.wandb_server import WandbServer
from tests.tracking.sending.written_run import WrittenRun

KEY = "c3" * 20
FAMILY = "tests-of-the-follower"
DEADLINE = 60.0  # of a test that hangs


def environment(url: str) -> dict[str, str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return {**given, "WANDB_BASE_URL": url, "WANDB_API_KEY": KEY}


def followers_of(run: WrittenRun, url: str, patience: float = 1.0) -> FollowerProcesses:
    env = environment(url)
    return FollowerProcesses(tasks_for(run.paths, run.to, env, 0.1, patience), env, retry_seconds=0.5)


def follow_until(followers: FollowerProcesses, happened: Callable[[list[str]], bool]) -> list[str]:
    """What was said until something happened, which may be that something was said."""
    said, deadline = followers.poll(), time.monotonic() + DEADLINE
    while not happened(said):
        assert time.monotonic() < deadline, said
        said += followers.poll()
        time.sleep(0.05)
    return said + followers.poll()


def on_the_board(run: WrittenRun) -> list[int]:
    if not Path(run.to.tensorboard).exists():
        return []
    accumulator = EventAccumulator(run.to.tensorboard)
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return [event.step for event in accumulator.Scalars("train/loss")] if "train/loss" in tags else []


def processes_of(run: WrittenRun) -> list[str]:
    """What is running for this run's folder: the followers, and W&B's own process, which starts within it."""
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


def test_everything_goes_to_both_however_slowly_wandb_takes_it(run: WrittenRun, server: WandbServer) -> None:
    server.delay = 0.1
    run.step(1, loss=1.0)
    followers = followers_of(run, server.url, patience=30.0)
    said = follow_until(followers, lambda _: bool(server.runs) and on_the_board(run) == [1])
    run.step(2, loss=2.0)
    run.clusters(2)
    assert follow_until(followers, lambda _: on_the_board(run) == [1, 2]) == said == []
    run.evaluation(2, pass1=0.5)
    assert followers.finish(DEADLINE) == []
    assert server.points("train/loss") == [1, 2]
    assert server.points("eval/pass1") == [0.5]
    assert [table["nrows"] for table in server.points("train/biggest_clusters")] == [1]
    assert server.runs[0]["project"] == "fruit"
    assert json.loads(server.runs[0]["config"])["meds"]["value"]["penalty"] == {"alpha": 0.1}
    assert followers.sent_everything
    assert not any(KEY.encode() in path.read_bytes() for path in run.paths.root.rglob("*") if path.is_file())


def test_a_wandb_that_hangs_is_said_once_and_holds_nothing_up(run: WrittenRun, server: WandbServer) -> None:
    server.behaviour = "hangs"
    run.step(1, loss=1.0)
    followers = followers_of(run, server.url)
    said = follow_until(followers, lambda said: on_the_board(run) == [1] and bool(said))
    run.step(2, loss=2.0)
    said += follow_until(followers, lambda _: on_the_board(run) == [1, 2])
    way_on = f"meds track {run.paths.root}"
    assert said == [
        "W&B has not answered for 1 s; training goes on. What is missing is sent when it answers, or later: " + way_on
    ]
    assert followers.finish(1.0) == [f"not everything is sent yet; the rest goes with: {way_on}"]
    assert processes_of(run) == []
    server.let_go.set()
    server.behaviour = "answers"
    later = followers_of(run, server.url, patience=30.0)
    assert later.finish(DEADLINE) == []
    assert server.points("train/loss") == [1, 2]
    assert on_the_board(run) == [1, 2]


def test_a_wandb_that_comes_back_gets_everything(
    run: WrittenRun, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An upload at the end that takes longer than the patience is no reason to give up.
    monkeypatch.setattr(follower_process, "IN_VAIN_SECONDS", DEADLINE)
    server.behaviour = "hangs"
    run.step(1, loss=1.0)
    followers = followers_of(run, server.url, patience=3.0)  # more than a question takes of a W&B that is back
    said = follow_until(followers, bool)
    server.behaviour = "answers"
    server.let_go.set()
    said += follow_until(followers, lambda said: bool(server.runs) and bool(said))
    assert said[0].startswith("W&B has not answered")
    assert said[1:] == ["W&B answers again"]
    assert followers.finish(DEADLINE) == []
    assert server.points("train/loss") == [1]


def test_a_wandb_that_refuses_is_said_once_without_the_key(run: WrittenRun, server: WandbServer) -> None:
    server.behaviour = "refuses"
    run.step(1, loss=1.0)
    followers = followers_of(run, server.url, patience=30.0)
    said = follow_until(followers, bool)
    log = run.paths.tracking_log
    # It was tried again.
    said += follow_until(followers, lambda _: log.read_text().count("CommError") >= 2 and on_the_board(run) == [1])
    assert said == [
        f"W&B refuses (its answer is in {log}); training goes on. To send it later, check WANDB_API_KEY, then: "
        f"meds track {run.paths.root}"
    ]
    assert len(followers.finish(1.0)) == 1
    files = [path.read_bytes() for path in run.paths.root.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in content for content in files)


def test_where_nobody_listens_tensorboard_goes_on(run: WrittenRun) -> None:
    with silent_address() as address:
        run.step(1, loss=1.0)
        followers = followers_of(run, address)
        said = follow_until(followers, bool)
        run.step(2, loss=2.0)
        said += follow_until(followers, lambda _: on_the_board(run) == [1, 2])
        assert [line[:26] for line in said] == ["W&B has not answered for 1"]
        assert len(followers.finish(0.5)) == 1


def test_killed_processes_are_started_again_and_send_nothing_twice(run: WrittenRun, server: WandbServer) -> None:
    run.step(1, loss=1.0)
    followers = followers_of(run, server.url, patience=30.0)
    follow_until(followers, lambda _: bool(server.runs) and on_the_board(run) == [1])
    for sink in followers._sinks:
        assert sink._process is not None
        os.kill(sink._process.pid, signal.SIGKILL)
    run.step(2, loss=2.0)
    again = "W&B answers again"  # sooner or later than the board is drawn
    said = follow_until(followers, lambda said: on_the_board(run) == [1, 2] and again in said)
    ended = "the process that writes to {} ended (-9, see {}); it is started again"
    log = run.paths.tracking_log
    assert sorted(said) == [again, *(ended.format(name, log) for name in ("TensorBoard", "W&B"))]
    assert not followers.get_nowhere  # or the end of the training run would not wait for them
    assert followers.finish(DEADLINE) == []
    assert server.points("train/loss") == [1, 2]


def test_the_block_of_a_training_run_ends_with_everything_sent(
    run: WrittenRun, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_process, "FINISH_SECONDS", DEADLINE)
    said: list[str] = []

    def train() -> None:
        with following_process(run.paths, run.to, environment(server.url), said.append) as followers:
            run.step(1, loss=1.0)
            assert followers.poll() == []
            raise KeyError("training failed")

    with pytest.raises(KeyError, match="training failed"):
        train()
    assert said == []
    assert server.points("train/loss") == [1]
    assert on_the_board(run) == [1]


def test_a_process_that_fails_at_the_end_is_said_and_its_log_named(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    run.paths.tensorboard.write_text("a file in the way")
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    followers = FollowerProcesses(tasks_for(run.paths, run.to, env, 0.1), env)
    followers.order_finish()
    log = run.paths.tracking_log
    said = follow_until(followers, lambda _: followers.are_done)
    assert said == [f"the process that writes to TensorBoard ended (1, see {log})"]
    assert not followers.sent_everything
    assert "NotADirectoryError" in log.read_text()


def without_wandb() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}


def test_a_process_that_cannot_be_started_is_said_once_and_tried_again(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    in_the_way = run.paths.tracking_log
    in_the_way.mkdir()
    followers = FollowerProcesses(
        tasks_for(run.paths, run.to, without_wandb(), 0.1), without_wandb(), retry_seconds=0.0
    )
    said = [line for _ in range(5) for line in followers.poll()]
    cannot = f"the process that writes to TensorBoard cannot be started (Is a directory: {in_the_way})"
    assert said == [f"{cannot}; it will be tried again"]
    assert not followers.are_done
    in_the_way.rmdir()
    assert follow_until(followers, lambda _: on_the_board(run) == [1]) == [
        "the process that writes to TensorBoard is started"
    ]
    assert followers.finish(DEADLINE) == []


def test_a_process_that_cannot_be_started_at_the_end_is_given_up(
    run: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", no_more)
    followers = FollowerProcesses(tasks_for(run.paths, run.to, without_wandb(), 0.1), without_wandb())
    assert [line[-45:] for line in followers.poll()] == ["(Too many open files); it will be tried again"]
    rest = f"not everything is sent yet; the rest goes with: meds track {run.paths.root}"
    assert followers.finish(DEADLINE) == [rest]
    assert followers.are_done


def test_a_driver_that_cannot_look_for_a_family_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no_more(family: str) -> list[int]:
        asked.append(family)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(processes, "family_members", no_more)
    monkeypatch.setattr(processes, "TRIES", 2)
    processes.end_family("a")
    assert asked == ["a", "a"]


def test_a_client_of_another_version_is_said_once_and_not_tried_again(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    env = {**environment("http://127.0.0.1:9"), "WANDB_MODE": "a mode of another version"}
    followers = FollowerProcesses(tasks_for(run.paths, run.to, env, 0.1), env, retry_seconds=0.0)
    wandb = followers._sinks[1]
    said = follow_until(followers, lambda _: wandb.is_done and on_the_board(run) == [1])
    assert said == [
        "W&B's client does not take its settings (mode): check the WANDB_* variables, or install wandb>=0.31,<0.32; "
        f"training goes on without it. To send it later: meds track {run.paths.root}"
    ]
    assert len(followers.finish(DEADLINE)) == 1


def test_only_wandb_learns_where_the_archive_is(run: WrittenRun) -> None:
    to = replace(run.to, archive="s3://bucket/runs/a")
    board, wandb = tasks_for(run.paths, to, {"WANDB_API_KEY": KEY})
    assert "bucket" not in board.as_json()
    assert wandb.to == to


def test_who_wants_no_more_tries_gets_none(run: WrittenRun) -> None:
    followers = FollowerProcesses(tasks_for(run.paths, run.to, without_wandb(), 0.1), without_wandb())
    (sink,) = followers._sinks
    followers.order_finish(tries=1)
    follow_until(followers, lambda _: followers.are_done)
    for is_last in (False, True):
        sink._start()
        deadline = time.monotonic() + DEADLINE
        while not processes_of(run):  # it is ended by its mark, which it does not carry from the first moment on
            assert time.monotonic() < deadline
        assert sink._ended(AGAIN) == []
        assert sink.is_done is is_last


def test_a_deserted_process_ends_by_itself(run: WrittenRun) -> None:
    env = {**os.environ, MARK: FAMILY}
    env = {name: value for name, value in env.items() if not name.startswith("WANDB_")}
    run.step(1, loss=1.0)
    followers = FollowerProcesses(tasks_for(run.paths, run.to, env, 0.1), env)
    (sink,) = followers._sinks
    assert sink._process is not None
    assert sink._process.stdin is not None
    sink._process.stdin.close()  # as at the death of the driver
    assert sink._process.wait(DEADLINE) == 0
    assert on_the_board(run) == [1]
