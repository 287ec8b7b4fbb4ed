"""The thread that sends to a tracker."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from meds_openrlhf.tracking.sending.run_lines import RewoundError
from meds_openrlhf.tracking.sending.sender import REWOUND, Pace, Sender, Session, log, without_keys

DEADLINE = 30.0
KEY = "e5" * 20


class Taker(Session):
    """Does in each round what the story says: takes something (True), has nothing to take (False), or fails."""

    def __init__(self, story: Iterator[bool | Exception], finishing: threading.Event) -> None:
        self._story, self._finishing = story, finishing
        self.finished = False

    def send_new(self) -> bool:
        match next(self._story, None):
            case None:
                self._finishing.set()
                return False
            case Exception() as error:
                raise error
            case took:
                return took

    def finish(self) -> None:
        self.finished = True

    def still_answers(self) -> bool:
        return self.finished


def sender_of(story: list[bool | Exception], finishing: threading.Event, retry: float = 0.0) -> Sender:
    rounds = iter(story)
    return Sender("W&B", lambda: Taker(rounds, finishing), Path("/run"), finishing, Pace(0.0, 5.0, retry))


def ended(sender: Sender) -> Sender:
    sender.start()
    sender.join(DEADLINE)
    assert not sender.is_alive()
    return sender


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_is_written_before_the_order_to_finish_is_still_sent() -> None:
    finishing, asked = threading.Event(), []

    class Late(Taker):
        def send_new(self) -> bool:
            asked.append(finishing.is_set())
            finishing.set()  # after it was looked at: a line may have been written since this reading
            return False

    sender = ended(Sender("W&B", lambda: Late(iter([]), finishing), Path("/run"), finishing, Pace(9.0, 5.0, 0.0)))
    assert asked == [False, True]
    assert sender.exit_code == 0
    assert sender.news() is None


def test_a_session_that_fails_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    finishing = threading.Event()
    sender = sender_of([OSError(f"refused {KEY}"), True], finishing, retry=0.2)
    sender.start()
    wait_until(lambda: sender._error is not None)
    assert sender.news() == (
        "W&B: OSError: refused ***; training goes on. What is missing is sent when it works again, or by: "
        "meds track /run"
    )
    assert sender.is_in_trouble
    assert sender.news() is None
    sender.join(DEADLINE)
    assert sender.exit_code == 0
    assert sender.news() == "W&B: sending works again"
    assert not sender.is_in_trouble
    log = capsys.readouterr().err
    assert "Traceback" in log
    assert KEY not in log


def test_an_open_session_that_fails_needs_another_process() -> None:
    finishing = threading.Event()
    sender = sender_of([OSError("lost")], finishing)
    sender._open_session = lambda: setattr(taker, "is_open", True) or taker
    taker = Taker(iter([OSError("lost")]), finishing)
    ended(sender)
    assert sender.exit_code == 1


def test_a_late_answer_is_said_once_and_when_it_comes() -> None:
    finishing = threading.Event()
    sender = sender_of([], finishing)
    session = sender._session = Taker(iter([]), finishing)
    session.waiting_since = time.monotonic()
    assert sender.news() is None
    session.waiting_since = time.monotonic() - 6.0
    said = sender.news()
    assert said is not None
    assert said.startswith("W&B: no answer for 5 s; training goes on.")
    assert sender.news() is None
    session.waiting_since = None
    assert sender.news() == "W&B: sending works again"
    session.waiting_since = time.monotonic() - 6.0
    session.finished = True  # it answers, and only takes its time
    assert sender.news() is None


def test_keys_are_taken_out_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert without_keys(f"refused: {KEY}!") == "refused: ***!"


def test_a_run_that_was_resumed_needs_another_process_and_is_no_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    sender = ended(sender_of([RewoundError()], threading.Event()))
    assert sender.exit_code == REWOUND
    assert sender.news() is None
    assert capsys.readouterr().err == ""


def test_the_order_to_finish_is_worth_another_try_at_once() -> None:
    finishing = threading.Event()
    sender = sender_of([OSError("away"), True], finishing, retry=DEADLINE)
    sender.start()
    wait_until(lambda: sender._error is not None)
    finishing.set()
    sender.join(DEADLINE / 2)
    assert sender.exit_code == 0


def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(OSError), Path("/dev/full").open("w") as full:  # which cannot be closed without an error either
        monkeypatch.setattr("sys.stderr", full)
        log("x" * 100_000)
        finishing = threading.Event()
        sender = ended(sender_of([OSError("no space"), True], finishing))
    assert sender.exit_code == 0
