"""The threads that send: a tracker that hangs or fails does not concern the others, nor the training."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from meds_openrlhf.config.errors import how_to_install
from meds_openrlhf.tracking import sending
from meds_openrlhf.tracking.sending import Trackers, new_lines
from meds_openrlhf.tracking.trackers import TRACKERS, RunLine
from tests.processes import DEADLINE, wait_until
from tests.tracking.wandb_server import WandbServer
from tests.tracking.written_run import KEY, WrittenRun, follow_until


class Fake:
    """A tracker that keeps what it is sent; ``doing`` is what it does first."""

    def __init__(self) -> None:
        self.sent: Mapping[str, int] = {}
        self.steps: list[int] = []
        self.tries, self.closed = 0, False
        self.doing: Callable[[], Any] = lambda: None

    def send(self, line: RunLine) -> None:
        self.tries += 1
        self.doing()
        self.steps.append(line.step)

    def close(self) -> None:
        self.closed = True

    def fail(self) -> None:
        raise OSError(f"refused {KEY}\nand more")


@pytest.fixture(autouse=True)
def _pace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"POLL_SECONDS": 0.05, "PATIENCE_SECONDS": DEADLINE, "RETRY_SECONDS": 0.3}.items():
        monkeypatch.setattr(sending, name, seconds)
    monkeypatch.setenv("WANDB_API_KEY", KEY)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fake]]:
    """Trackers "bad" and "good"."""
    fakes = [Fake(), Fake()]
    for name, fake in zip(("bad", "good"), fakes):
        monkeypatch.setitem(TRACKERS, name, (name.title(), lambda _, fake=fake: fake))
    yield fakes
    for fake in fakes:
        fake.doing = lambda: None


def way_on(run: WrittenRun) -> str:
    return f"Training continues; the rest is sent later, or with: meds track {run.paths.root}"


@pytest.mark.parametrize("log", ["/", "/dev/full"])  # cannot be opened, cannot be written
def test_failing_tracker_is_tried_until_the_end_and_once_more(
    run: WrittenRun, fakes: Any, monkeypatch: pytest.MonkeyPatch, log: str, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = fakes[0]
    bad.doing = bad.fail
    run.paths.tracking_log.symlink_to(log)
    run.steps(1)
    trackers = Trackers(run.paths, ["bad"])
    trackers.finishing.set()
    assert follow_until(trackers, lambda _: bad.tries > 2) == [f"Bad: OSError: refused *** and more. {way_on(run)}"]
    assert trackers.are_stuck
    waits, wait = list[float](), trackers.ending.wait
    monkeypatch.setattr(trackers.ending, "wait", lambda seconds: waits.append(seconds) or wait(seconds))
    monkeypatch.setattr(sending, "RETRY_SECONDS", DEADLINE)
    follow_until(trackers, lambda _: DEADLINE in waits)
    tries = bad.tries
    assert trackers.finish(DEADLINE / 2) == [run.rest_of("Bad")]
    assert bad.tries == tries + 1
    assert capfd.readouterr().err == ""


def test_a_call_that_is_abandoned_is_not_tried_again(
    run: WrittenRun, fakes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of W&B's process fails the call that waits for it; another call would start another process."""
    bad, ended = fakes[0], threading.Event()
    bad.doing = lambda: ended.wait() and bad.fail()
    monkeypatch.setattr(sending, "abandon", ended.set)
    run.steps(1)
    trackers = Trackers(run.paths, ["bad"])
    follow_until(trackers, lambda _: bad.tries == 1)
    assert trackers.finish(0.2) == [run.rest_of("Bad")]
    wait_until(lambda: "Bad" not in [thread.name for thread in threading.enumerate()])
    assert bad.tries == 1


def test_lines_already_sent_are_left_out_until_repeated(run: WrittenRun, fakes: Any) -> None:
    good = fakes[1]
    run.send("good")
    assert not good.closed  # without anything to send it is not opened
    run.steps(1, 2, 3, 4)
    run.evaluation(4, pass1=0.5)
    good.sent = {"metrics": 3}
    run.send("good")
    assert good.steps == [4, 4]
    good.doing = good.fail  # a failure changes nothing
    trackers = Trackers(run.paths, ["good"], first_step=1)
    follow_until(trackers, bool)
    good.doing = lambda: None
    follow_until(trackers, bool)
    assert trackers.finish(DEADLINE) == []
    assert good.steps == [4, 4, 2, 3, 4, 4]


def test_failure_after_a_resume_loses_no_repeated_lines(run: WrittenRun, fakes: Any) -> None:
    good = fakes[1]
    good.sent = {"metrics": 2, "evaluations": 4}
    run.steps(2)
    trackers = Trackers(run.paths, ["good"], first_step=1)
    follow_until(trackers, lambda _: good.steps == [2])
    good.doing = good.fail
    run.steps(3)
    follow_until(trackers, bool)
    run.evaluation(3, pass1=0.5)
    good.doing = lambda: None
    follow_until(trackers, bool)
    assert trackers.finish(DEADLINE) == []
    assert good.steps == [2, 3, 3]


def test_a_run_that_is_resumed_meanwhile_is_read_again(run: WrittenRun, fakes: Any) -> None:
    good = fakes[1]
    run.steps(1, 2, 3)
    trackers = Trackers(run.paths, ["good"])
    follow_until(trackers, lambda _: good.steps == [1, 2, 3])
    run.resume(3)  # which replaces the files also if nothing is cut
    run.steps(4)
    follow_until(trackers, lambda _: good.steps == [1, 2, 3, 1, 2, 3, 4])
    trackers.finish(DEADLINE)
    assert trackers.left == []


def test_lines_come_once_by_step_and_half_a_line_when_it_is_whole(run: WrittenRun) -> None:
    files: dict[str, Any] = {}
    assert new_lines(run.paths, files) == []
    run.step(1, loss=0.5)
    run.step(2, loss=0.25)
    run.evaluation(1, pass1=0.75)
    first, second, third = new_lines(run.paths, files)
    assert first == RunLine("metrics", 1, {"loss": 0.5})
    assert (second.stream, second.step, third.stream, third.step) == ("evaluations", 1, "metrics", 2)
    with run.paths.metrics.open("a") as file:
        file.write('{"step": 3, "lo')
        file.flush()
        assert new_lines(run.paths, files) == []
        file.write('ss": 4.0, "text": "not sent", "list": [1]}\n')
    (line,) = new_lines(run.paths, files)
    assert (line.step, line.numbers) == (3, {"train/loss": 4.0})


def test_a_wandb_that_hangs_and_comes_back_gets_everything(
    run: WrittenRun, online: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    online.behavior = "hangs"
    run.steps(1)
    trackers = Trackers(run.paths, ["tensorboard", "wandb"])
    follow_until(trackers, lambda _: run.on_the_board() == [1])
    monkeypatch.setattr(sending, "PATIENCE_SECONDS", 2.0)
    assert follow_until(trackers, bool) == [f"W&B: no answer for 2 s. {way_on(run)}"]
    online.behavior = "answers"
    online.let_go.set()
    assert follow_until(trackers, bool) == ["W&B: sending works again"]
    assert trackers.finish(DEADLINE) == []
    assert online.points("train/loss") == [1]


def test_a_wandb_that_refuses_is_one_line_without_the_key_and_tried_again(
    run: WrittenRun, online: WandbServer, capfd: pytest.CaptureFixture[str]
) -> None:
    online.behavior = "refuses"
    run.steps(1)
    trackers = Trackers(run.paths, ["tensorboard", "wandb"])
    log = run.paths.tracking_log
    said = follow_until(trackers, lambda said: bool(said) and log.read_text().count("sending: W&B") >= 2)
    (line,) = [line for line in said if line.startswith("W&B: CommError: ")]
    assert "bad key" in line
    assert run.on_the_board() == [1]
    online.behavior = "answers"
    follow_until(trackers, lambda said: "W&B: sending works again" in said)
    assert trackers.finish(DEADLINE) == []
    assert online.points("train/loss") == [1]
    assert "Traceback" in log.read_text()
    assert not run.holds(KEY)
    assert capfd.readouterr() == ("", "")


def test_a_missing_package_is_one_line_that_names_its_extra(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("wandb", "swanlab"):
        monkeypatch.setitem(sys.modules, package, None)
    run.steps(1)
    trackers = Trackers(run.paths, ["tensorboard", "wandb", "swanlab"])
    said = follow_until(trackers, lambda said: len(said) == 2 and run.on_the_board() == [1])
    assert sorted(said) == [
        f"SwanLab: swanlab is not installed; {how_to_install('swanlab')}. {way_on(run)}",
        f"W&B: wandb is not installed; {how_to_install('track')}. {way_on(run)}",
    ]
    assert trackers.finish(DEADLINE) == [run.rest_of("W&B, SwanLab")]
