"""The threads that send: a tracker that hangs or fails does not concern the others, nor the training."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from meds_openrlhf.locks import try_lock
from meds_openrlhf.tracking import sending
from meds_openrlhf.tracking.redaction import without_keys
from meds_openrlhf.tracking.run_lines import RunLine
from meds_openrlhf.tracking.sending import Trackers
from meds_openrlhf.tracking.trackers import TRACKERS
from tests.ports import silent_address
from tests.tracking.wandb_server import WandbServer
from tests.tracking.written_run import WrittenRun

KEY = "e5" * 20
DEADLINE = 60.0  # of a test that hangs


def follow_until(trackers: Trackers, happened: Callable[[list[str]], bool]) -> list[str]:
    """What was said until something happened, which may be that something was said."""
    said, deadline = trackers.poll(), time.monotonic() + DEADLINE
    while not happened(said):
        assert time.monotonic() < deadline, said
        said += trackers.poll()
        time.sleep(0.05)
    return said + trackers.poll()


def on_the_board(run: WrittenRun) -> list[int]:
    if not run.tensorboard.exists():
        return []
    accumulator = EventAccumulator(str(run.tensorboard))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return [event.step for event in accumulator.Scalars("train/loss")] if "train/loss" in tags else []


class Fake:
    """A tracker that keeps what it is sent; ``doing`` is what it does first."""

    sent: ClassVar[Mapping[str, int]] = {}

    def __init__(self, doing: Callable[[], Any] = lambda: None) -> None:
        self.steps: list[int] = []
        self.doing, self.closed = doing, False

    def send(self, lines: list[RunLine]) -> None:
        self.doing()
        self.steps += [line.step for line in lines]

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _pace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"POLL_SECONDS": 0.05, "PATIENCE_SECONDS": 2.0, "RETRY_SECONDS": 0.3}.items():
        monkeypatch.setattr(sending, name, seconds)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Fake]]:
    """Trackers "good" and "bad"."""
    fakes = {"good": Fake(), "bad": Fake()}
    for name, fake in fakes.items():
        monkeypatch.setitem(TRACKERS, name, (name.title(), lambda _, fake=fake: fake))
    yield fakes
    for fake in fakes.values():
        fake.doing = lambda: None


def way_on(run: WrittenRun) -> str:
    return f"Training continues; the rest is sent later, or with: meds track {run.paths.root}"


def rest_of(run: WrittenRun, name: str) -> str:
    return f"not everything was sent to {name}. Send the rest with: meds track {run.paths.root}"


def test_a_tracker_that_hangs_is_said_once_and_its_neighbour_does_not_notice(
    run: WrittenRun, fakes: dict[str, Fake]
) -> None:
    let_go = threading.Event()
    fakes["bad"].doing = let_go.wait
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["bad", "good"])
    assert follow_until(trackers, bool) == [f"Bad: no answer for 2 s. {way_on(run)}"]
    run.step(2, loss=2.0)
    assert follow_until(trackers, lambda _: fakes["good"].steps == [1, 2]) == []
    started = time.monotonic()
    assert trackers.finish(1.0) == [rest_of(run, "Bad")]
    assert time.monotonic() < started + 2.0
    assert fakes["good"].closed
    assert trackers.left == ["Bad"]
    let_go.set()
    assert follow_until(trackers, lambda _: trackers.left == []) == ["Bad: sending works again"]
    assert fakes["bad"].steps == [1, 2]


def test_a_tracker_that_raises_is_said_once_and_its_neighbour_does_not_notice(
    run: WrittenRun, fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)

    def fail() -> None:
        raise OSError(f"refused {KEY}\nand more")

    fakes["bad"].doing = fail
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["bad", "good"])
    said = follow_until(trackers, bool)
    assert said == [f"Bad: OSError: refused *** and more. {way_on(run)}"]
    run.step(2, loss=2.0)
    assert follow_until(trackers, lambda _: fakes["good"].steps == [1, 2]) == []
    fakes["bad"].doing = lambda: None
    assert follow_until(trackers, bool) == ["Bad: sending works again"]
    assert trackers.finish(DEADLINE) == []
    assert fakes["bad"].steps == [1, 2]
    log = run.paths.tracking_log.read_text()
    assert "Traceback" in log
    assert KEY not in log


def test_at_the_end_a_tracker_that_fails_gets_one_more_try(run: WrittenRun, fakes: dict[str, Fake]) -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise OSError("away")

    fakes["bad"].doing = fail
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["bad"])
    sending.RETRY_SECONDS = DEADLINE  # put back by `_pace`
    follow_until(trackers, bool)
    before = len(tries)
    assert trackers.finish(DEADLINE / 2) == [rest_of(run, "Bad")]
    assert len(tries) == before + 1


def test_a_call_that_is_abandoned_is_not_tried_again(
    run: WrittenRun, fakes: dict[str, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of W&B's process fails the call that waits for it; another call would start another process."""
    tries: list[int] = []
    ended = threading.Event()

    def fail_when_ended() -> None:
        tries.append(1)
        ended.wait()
        raise OSError("lost its process")

    fakes["bad"].doing = fail_when_ended
    monkeypatch.setattr(sending, "abandon", ended.set)
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["bad"])
    follow_until(trackers, lambda _: len(tries) == 1)
    assert trackers.finish(0.2) == [rest_of(run, "Bad")]
    follow_until(trackers, lambda _: not trackers.are_at_work())
    assert len(tries) == 1


def test_a_patient_sender_does_not_give_up(run: WrittenRun, fakes: dict[str, Fake]) -> None:
    def fail() -> None:
        raise OSError("away")

    fakes["bad"].doing = fail
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["bad"], patient=True)
    trackers.finishing.set()
    assert trackers.finish(1.0)[-1] == rest_of(run, "Bad")
    assert trackers.are_at_work()
    fakes["bad"].doing = lambda: None
    follow_until(trackers, lambda _: not trackers.are_at_work())
    assert (trackers.left, fakes["bad"].steps) == ([], [1])


def test_lines_that_a_tracker_has_are_left_out_until_a_resumed_run_repeats_them(
    run: WrittenRun, fakes: dict[str, Fake]
) -> None:
    for step in (1, 2, 3, 4):
        run.step(step, loss=1.0)
    run.evaluation(4, pass1=0.5)
    fakes["good"].sent = {"metrics": 3}  # type: ignore[misc]
    run.send("good")
    assert fakes["good"].steps == [4, 4]
    run.send("good", first_step=1)
    assert fakes["good"].steps == [4, 4, 2, 3, 4, 4]


def test_without_anything_to_send_no_tracker_is_opened(run: WrittenRun, fakes: dict[str, Fake]) -> None:
    run.send("good")
    assert not fakes["good"].closed


def test_a_run_that_is_sent_by_another_process_is_said(run: WrittenRun, fakes: dict[str, Fake]) -> None:
    run.step(1, loss=1.0)
    with (run.paths.root / ".tracking-bad.lock").open("w") as lock:
        assert try_lock(lock.fileno())
        trackers = Trackers(run.paths, ["bad", "good"])
        said = follow_until(trackers, lambda said: bool(said) and fakes["good"].steps == [1])
        assert said == [f"Bad: RuntimeError: another process already sends this run. {way_on(run)}"]
    assert follow_until(trackers, bool) == ["Bad: sending works again"]
    assert trackers.finish(DEADLINE) == []
    assert fakes["bad"].steps == [1]


def test_a_run_that_is_resumed_meanwhile_is_read_again(run: WrittenRun, fakes: dict[str, Fake]) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=1.0)
    trackers = Trackers(run.paths, ["good"])
    follow_until(trackers, lambda _: fakes["good"].steps == [1, 2, 3])
    run.resume(1)
    run.step(2, loss=1.0)
    follow_until(trackers, lambda _: fakes["good"].steps == [1, 2, 3, 1, 2])
    trackers.finish(DEADLINE)
    assert trackers.left == []


def test_a_full_disk_ends_nothing(run: WrittenRun, fakes: dict[str, Fake], capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise OSError("away")

    fakes["bad"].doing = fail
    run.paths.tracking_log.symlink_to("/dev/full")
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["bad"])
    assert follow_until(trackers, bool) == [f"Bad: OSError: away. {way_on(run)}"]
    fakes["bad"].doing = lambda: None
    trackers.finish(DEADLINE)
    assert fakes["bad"].steps == [1]
    assert capfd.readouterr().err == ""


def test_files_that_cannot_be_written_are_said_and_written_when_they_can(run: WrittenRun) -> None:
    run.step(1, loss=1.0)
    run.paths.tensorboard.write_text("a file in the way")
    trackers = Trackers(run.paths, ["tensorboard"])
    (said,) = follow_until(trackers, bool)
    assert said.startswith("TensorBoard: NotADirectoryError: ")
    run.paths.tensorboard.unlink()
    assert follow_until(trackers, bool) == ["TensorBoard: sending works again"]
    assert trackers.finish(DEADLINE) == []
    assert on_the_board(run) == [1]


def test_a_wandb_that_hangs_and_comes_back_gets_everything(
    run: WrittenRun, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    server.behaviour = "hangs"
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["tensorboard", "wandb"])
    said = follow_until(trackers, lambda said: on_the_board(run) == [1] and bool(said))
    assert said == [f"W&B: no answer for 2 s. {way_on(run)}"]
    server.behaviour = "answers"
    server.let_go.set()
    assert follow_until(trackers, bool) == ["W&B: sending works again"]
    assert trackers.finish(DEADLINE) == []
    assert server.points("train/loss") == [1]


def test_a_wandb_that_refuses_is_one_line_without_the_key_and_tried_again(
    run: WrittenRun, server: WandbServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    server.behaviour = "refuses"
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["tensorboard", "wandb"])
    log = run.paths.tracking_log
    tried = "sending: W&B"
    said = follow_until(trackers, lambda said: bool(said) and log.read_text().count(tried) >= 2)
    (line,) = [line for line in said if "CommError" in line]
    assert line.startswith("W&B: CommError: ")
    assert "bad key" in line
    assert on_the_board(run) == [1]
    server.behaviour = "answers"
    follow_until(trackers, lambda said: "W&B: sending works again" in said)
    assert trackers.finish(DEADLINE) == []
    assert server.points("train/loss") == [1]
    assert not run.holds(KEY)
    assert capfd.readouterr() == ("", "")


def test_where_nobody_listens_tensorboard_goes_on(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_address() as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        run.step(1, loss=1.0)
        trackers = Trackers(run.paths, ["tensorboard", "mlflow"])
        said = follow_until(trackers, bool)
        run.step(2, loss=2.0)
        said += follow_until(trackers, lambda _: on_the_board(run) == [1, 2])
        assert said == [f"MLflow: no answer for 2 s. {way_on(run)}"]
        assert trackers.finish(0.5) == [rest_of(run, "MLflow")]


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("W&B", "wandb", "track"), ("SwanLab", "swanlab", "swanlab"), ("MLflow", "mlflow", "mlflow")],
)
def test_a_missing_package_is_one_line_that_names_its_extra(
    run: WrittenRun, name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    run.step(1, loss=1.0)
    trackers = Trackers(run.paths, ["tensorboard", package])
    (said,) = follow_until(trackers, lambda said: bool(said) and on_the_board(run) == [1])
    assert said == f"{name}: {package} is not installed; pip install 'meds-openrlhf[{extra}]'. {way_on(run)}"
    assert trackers.finish(DEADLINE) == [rest_of(run, name)]


def test_keys_are_taken_out_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert without_keys(f"refused: {KEY}!") == "refused: ***!"
