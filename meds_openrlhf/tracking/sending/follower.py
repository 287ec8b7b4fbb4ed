"""The process that follows a run for a sink: ``python -m`` this module, with its task as JSON.

It reports its status as JSON lines on stdout, and reads the order ``finish SECONDS`` from stdin. If stdin closes
without an order, the parent is gone: the process sends what is there and ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.processes import MARK, end_family
from meds_openrlhf.tracking.sending.destinations import TENSORBOARD, Destinations
from meds_openrlhf.tracking.sending.patience import PATIENCE_SECONDS, Patience
from meds_openrlhf.tracking.sending.run_lines import RunLines
from meds_openrlhf.tracking.sending.tracking_state import SentBackError, StateFile

POLL_SECONDS = 1.0
DESERTED_SECONDS = 60.0  # time to send the rest after the parent is gone
# Exit codes besides 0 (everything sent) and 1 (error): restart now; retry later; do not retry until the user fixes it;
# time for finishing is up; the installed client of W&B does not work.
AGAIN, UNREACHED, REFUSED, LATE, UNFIT = 75, 76, 77, 78, 79
WANDB_NEEDED = "wandb>=0.31,<0.32"


@dataclass(frozen=True)
class Task:
    """The process's task. It is passed on the command line and contains no secrets."""

    sink: str
    run: str
    to: Destinations
    poll_seconds: float = POLL_SECONDS
    patience_seconds: float = PATIENCE_SECONDS

    def as_json(self) -> str:
        """Encode the task for the command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Task:
        """Decode a task from the command line."""
        content = json.loads(text)
        return Task(**{**content, "to": Destinations(**content["to"])})


class Sink(Protocol):
    """A destination of a run's lines."""

    def hand_new(self, last: bool = False) -> bool:
        """Send new lines; returns whether there were any. ``last``: do not delay anything for later."""

    def finish(self) -> bool:
        """Wait until everything sent has arrived, and close; returns whether everything has arrived."""


class Orders:
    """Reads orders of the parent process in a thread."""

    def __init__(self, descriptor: int, end: Callable[[], None]) -> None:
        self.finishing = threading.Event()
        self._end = end
        threading.Thread(target=self._read, args=(descriptor,), daemon=True).start()

    def _read(self, descriptor: int) -> None:
        # os.read instead of a stream: this thread would hold the stream's lock at interpreter exit.
        while order := os.read(descriptor, 1000):
            self.finishing.set()
            if seconds := order.split()[1:2]:
                self._end_after(float(seconds[0]))
        self.finishing.set()
        self._end_after(DESERTED_SECONDS)

    def _end_after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()


def follow(sink: Sink, finishing: threading.Event, poll_seconds: float) -> bool:
    """Send new lines until the order to finish, then the rest; returns whether everything has arrived."""
    while True:
        last = finishing.is_set()  # before reading, so that all lines written before the order are read
        if sink.hand_new(last):
            continue
        if last:
            return sink.finish()
        finishing.wait(poll_seconds)


def run(task: Task, say: Callable[..., None]) -> int:
    """Follow the run to its end; returns the exit code."""
    paths = RunPaths(Path(task.run))
    orders = Orders(sys.stdin.fileno(), lambda: _end_now(LATE))
    with paths.root.joinpath(f".tracking-{task.sink}.lock").open("w") as lock:
        _wait_to_be_sole(lock, say)
        state, lines = StateFile(paths), RunLines(paths)
        try:
            if task.sink == TENSORBOARD:
                from meds_openrlhf.tracking.sending.tensorboard_sink import TensorboardSink

                sink: Sink = TensorboardSink(task.to.tensorboard, state, lines)
                return 0 if follow(sink, orders.finishing, task.poll_seconds) else AGAIN
            return _follow_to_wandb(task, paths, state, lines, orders, say)
        except SentBackError:
            return AGAIN


def _follow_to_wandb(
    task: Task, paths: RunPaths, state: StateFile, lines: RunLines, orders: Orders, say: Callable[..., None]
) -> int:
    try:
        import wandb

        from meds_openrlhf.tracking.sending.wandb_run import UnfitClientError
        from meds_openrlhf.tracking.sending.wandb_sink import StalledError, WandbSink
    except ImportError as error:
        say(_unfit(task, f"cannot be loaded ({error})"))
        return UNFIT

    way_on = f"training goes on. What is missing is sent when it answers, or later: meds track {task.run}"
    silence = f"W&B has not answered for {task.patience_seconds:.0f} s; {way_on}"
    patience = Patience(task.patience_seconds, lambda: say(silence), lambda: say("W&B answers again", well=True))
    try:
        sink = WandbSink(paths, task.to, state, lines, patience, say)
        return 0 if follow(sink, orders.finishing, task.poll_seconds) else AGAIN
    except StalledError:
        return AGAIN
    except UnfitClientError as error:
        say(_unfit(task, f"does not take its settings ({without_keys(str(error))})"))
        return UNFIT
    except wandb.Error as error:
        if not is_refusal(error):
            say(f"W&B cannot be reached ({type(error).__name__}); {way_on}")
            return UNREACHED
        hint = f"check WANDB_API_KEY, then: meds track {task.run}"
        say(f"W&B refuses (its answer is in {paths.tracking_log}); training goes on. To send it later, {hint}")
        sys.stderr.write(f"{type(error).__name__}: {without_keys(str(error))}\n")
        return REFUSED


def _unfit(task: Task, what: str) -> str:
    return (
        f"W&B's client {what}: check the WANDB_* variables, or install {WANDB_NEEDED}; training goes on without it. "
        f"To send it later: meds track {task.run}"
    )


def is_refusal(error: Exception) -> bool:
    """Whether W&B or its client refuses permanently."""
    from wandb.errors import AuthenticationError, UsageError

    return isinstance(error, (AuthenticationError, UsageError)) or any(
        f"error {status}" in str(error) or f"HTTP {status}" in str(error) for status in (400, 401, 403, 404)
    )


def without_keys(text: str) -> str:
    """Hide the values of environment variables that hold keys in ``text``."""
    from meds_openrlhf.tracking.redaction import HIDDEN, secrets_of

    for secret in secrets_of(os.environ):
        text = text.replace(secret, HIDDEN)
    return text


def _wait_to_be_sole(lock: Any, say: Callable[..., None]) -> None:
    """Wait until no other process sends the run to this sink; an order with a time limit also ends the wait."""
    said = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not said:
                say("another process sends this run already; waiting for it to end")
                said = True
            time.sleep(POLL_SECONDS)
            continue
        if said:
            say("the other process that sent this run has ended; this one goes on", well=True)
        return


def _end_now(code: int) -> None:
    """Exit without waiting for anything, and kill W&B's process."""
    end_family(os.environ.get(MARK), but=os.getpid())
    os._exit(code)


def _end_with_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(without_keys("".join(traceback.format_exception(kind, error, trace))))
    sys.stderr.flush()
    _end_now(1)


def main() -> None:
    """Run the process."""
    task = Task.from_json(sys.argv[1])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keep output of libraries out of the messages

    def say(line: str, well: bool | None = False) -> None:
        with suppress(BrokenPipeError):  # the parent is gone, but the rest is still sent
            answers.write(json.dumps({"say": line, "well": well}) + "\n")
            answers.flush()

    sys.excepthook = _end_with_error
    code = run(task, say)
    sys.stderr.flush()
    if code != 0:
        _end_now(code)  # W&B's client would wait for its uploads


if __name__ == "__main__":
    main()
