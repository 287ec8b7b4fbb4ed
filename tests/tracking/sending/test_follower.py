"""The process that follows, piece by piece."""

import fcntl
import os
import threading
from pathlib import Path

import pytest
import tomllib
from wandb.errors import AuthenticationError, CommError

from meds_openrlhf.tracking.sending import follower
from meds_openrlhf.tracking.sending.destinations import Destinations
from meds_openrlhf.tracking.sending.follower import Orders, Task, follow, is_refusal, without_keys
from meds_openrlhf.tracking.sending.patience import Patience

DEADLINE = 30.0


class Taker:
    """A sink that notes how it is asked."""

    def __init__(self, waiting: int, finishing: threading.Event) -> None:
        self.waiting, self.asked, self._finishing = waiting, [], finishing

    def hand_new(self, last: bool = False) -> bool:
        self.asked.append(last)
        if self.waiting == 0:
            self._finishing.set()
            return False
        self.waiting -= 1
        return True

    def finish(self) -> bool:
        self.asked.append("finish")
        return True


def test_what_is_written_before_the_order_to_finish_is_still_handed_on() -> None:
    finishing = threading.Event()
    taker = Taker(2, finishing)
    assert follow(taker, finishing, DEADLINE)
    assert taker.asked == [False, False, False, True, "finish"]


def test_an_order_gives_a_time_and_the_end_of_orders_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    reading, writing = os.pipe()
    orders = Orders(reading, ended.set)
    os.write(writing, b"finish\n")
    assert orders.finishing.wait(DEADLINE)
    assert not ended.is_set()
    os.write(writing, b"finish 0.01\n")
    assert ended.wait(DEADLINE)
    os.close(writing)
    monkeypatch.setattr(follower, "DESERTED_SECONDS", 0.01)
    ended.clear()
    reading, writing = os.pipe()
    orders = Orders(reading, ended.set)
    os.close(writing)
    assert orders.finishing.wait(DEADLINE)
    assert ended.wait(DEADLINE)


def test_a_second_process_waits_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "POLL_SECONDS", 0.01)
    said: list[tuple[str, bool]] = []

    def say(line: str, well: bool = False) -> None:
        said.append((line, well))
        if not well:
            first.close()

    first, second = (tmp_path / "lock").open("w"), (tmp_path / "lock").open("w")
    with second:
        fcntl.flock(first, fcntl.LOCK_EX)
        follower._wait_to_be_sole(second, say)
    assert [well for _, well in said] == [False, True]


def test_a_task_travels_as_json() -> None:
    task = Task("wandb", "/runs/a", Destinations("/runs/a/tensorboard/a", "a", archive="s3://b"), 0.5, 3.0)
    assert Task.from_json(task.as_json()) == task


@pytest.mark.parametrize(
    ("error", "refuses"),
    [
        (AuthenticationError("no"), True),
        (CommError("Failed to get resume status: returned error 401: bad key"), True),
        (CommError("HTTP 403: not yours"), True),
        (CommError("returned error 503: come back"), False),
        (CommError("Run initialization has timed out"), False),
    ],
)
def test_a_refusal_is_told_from_an_outage(error: Exception, refuses: bool) -> None:
    assert is_refusal(error) is refuses


def test_the_client_that_is_named_is_the_one_that_this_package_requires() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert follower.WANDB_NEEDED in project["optional-dependencies"]["track"]


def test_keys_are_taken_out_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "e5" * 20)
    assert without_keys(f"refused: {'e5' * 20}!") == "refused: ***!"


def test_patience_is_lost_once_and_regained_once() -> None:
    lost, told = threading.Event(), []
    patience = Patience(0.01, lost.set, lambda: told.append("there"))
    patience.expect()
    assert lost.wait(DEADLINE)
    lost.clear()
    patience.expect()
    patience.answered()
    patience.answered()
    assert told == ["there"]
    patience.expect()
    assert lost.wait(DEADLINE)
    patience.answered()
    assert told == ["there", "there"]
