"""Start and stop the processes that send a run's metrics, during training or separately."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.processes import MARK, end_family
from meds_openrlhf.tracking.sending.destinations import TENSORBOARD, WANDB, Destinations, wandb_wanted
from meds_openrlhf.tracking.sending.follower import (
    AGAIN,
    LATE,
    POLL_SECONDS,
    REFUSED,
    UNFIT,
    UNREACHED,
    Task,
)
from meds_openrlhf.tracking.sending.patience import PATIENCE_SECONDS

PACKAGE = Path(__file__).parents[3]  # the folder that holds the package
FINISH_SECONDS = 30.0
IN_VAIN_SECONDS = 3.0
# Delay before a process that ended with an error is restarted.
RETRY_SECONDS = 60.0
NOT_STARTED = -1000  # in place of an exit code


class SinkProcess:
    """The process of a sink; restarts it if it ends early."""

    def __init__(self, task: Task, environment: Mapping[str, str], retry_seconds: float) -> None:
        self._task, self._retry_seconds = task, retry_seconds
        self._paths = RunPaths(Path(task.run))
        self._environment = {name: value for name, value in environment.items() if name != "WANDB_SERVICE"}
        python_path = [str(PACKAGE), environment.get("PYTHONPATH", "")]  # in a submitted job, the working folder
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
        self._finish_order: str | None = None
        self._worth_another_try: tuple[int, ...] = ()
        self._tries_left = math.inf
        self._is_well = True  # according to the last message to the user
        self._is_in_trouble = False  # according to the running process
        self._received = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._due: float | None = None  # time of the next restart
        self.code: int | None = None  # exit code of the last process
        self._lacks_start = False  # whether a failed start was reported to the user
        self._unsaid = self._start()

    @property
    def is_done(self) -> bool:
        """Whether the process has ended and will not be restarted."""
        return self._process is None and self._due is None

    @property
    def gets_nowhere(self) -> bool:
        """Whether the process reports trouble or waits for a retry; False again after a successful restart."""
        return self.code != AGAIN if self._process is None else self._is_in_trouble

    def poll(self) -> list[str]:
        """The messages since the last call. Never blocks."""
        said, self._unsaid = self._unsaid, []
        if self._process is None:
            if self._due is not None and time.monotonic() >= self._due:
                said += self._start()
            return said
        code = self._process.poll()  # before reading, so that no message is lost
        said += self._take_messages()
        if code is not None:
            said += self._ended(code)
        return said

    def order_finish(self, seconds: float | None, tries: float) -> None:
        """Order it to send the rest and end, within ``seconds`` if given, with at most ``tries`` restarts."""
        self._tries_left = tries
        self._worth_another_try = (AGAIN, UNREACHED) if seconds is None else (AGAIN,)
        self._finish_order = "finish\n" if seconds is None else f"finish {seconds}\n"
        if self._process is not None:
            self._pass_order_on()
        elif self._due is not None:
            self._due = time.monotonic() if self.code != REFUSED else None

    def end(self) -> None:
        """Kill the process and all its children."""
        self._due = None
        if self._process is None:
            return
        self._process.kill()  # a process that has just started has no mark yet
        end_family(self._family)
        self.code = self._process.wait()
        self._close()

    def _start(self) -> list[str]:
        """Start the process and return messages. Reports an OSError: a full disk must not stop training."""
        self._family, self._due, self._is_in_trouble = uuid.uuid4().hex, None, False
        try:
            self._process = self._started()
        except OSError as error:
            return self._not_started(error)
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._pass_order_on()
        lacked, self._lacks_start = self._lacks_start, False
        if not lacked:
            return []
        return self._note({"say": f"the process that writes to {self._name} is started", "well": True})

    def _started(self) -> subprocess.Popen[bytes]:
        with self._paths.tracking_log.open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "meds_openrlhf.tracking.sending.follower", self._task.as_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**self._environment, MARK: self._family},
                start_new_session=True,  # Ctrl-C goes to the training run, which then orders to finish
            )

    def _not_started(self, error: OSError) -> list[str]:
        self.code = NOT_STARTED
        if self._finish_order is None:
            self._due = time.monotonic() + self._retry_seconds
        way_on = "; it will be tried again" if self._due is not None else ""
        reason = f"{error.strerror or type(error).__name__}{f': {error.filename}' if error.filename else ''}"
        say = f"the process that writes to {self._name} cannot be started ({reason}){way_on}"
        said = self._note({"say": say, "well": False})
        self._lacks_start = self._lacks_start or bool(said)
        return said

    def _pass_order_on(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        if self._finish_order is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(self._finish_order.encode())
                self._process.stdin.flush()

    def _take_messages(self) -> list[str]:
        assert self._process is not None
        assert self._process.stdout is not None
        self._received += self._process.stdout.read() or b""
        *lines, self._received = self._received.split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if message["well"] is not None:
                self._is_in_trouble = not message["well"]
        return [said for message in messages for said in self._note(message)]

    def _note(self, message: dict[str, Any]) -> list[str]:
        """Report the first of several failures in a row, and the recovery.

        Messages without a status are always reported.
        """
        if message["well"] is None:
            return [message["say"]]
        news = self._is_well != message["well"]
        self._is_well = message["well"]
        return [message["say"]] if news else []

    def _ended(self, code: int) -> list[str]:
        end_family(self._family)
        self._close()
        self.code = code
        is_over = code in (0, UNFIT) or (self._finish_order is not None and not self._is_worth_another_try(code))
        if not is_over:
            self._tries_left -= 1
            self._due = time.monotonic() + (0.0 if code == AGAIN else self._retry_seconds)
        if code in (0, AGAIN, UNREACHED, REFUSED, LATE, UNFIT):  # already reported, or nothing to report
            return []
        way_on = "" if is_over else "; it is started again"
        say = f"the process that writes to {self._name} ended ({code}, see {self._paths.tracking_log}){way_on}"
        return self._note({"say": say, "well": False})

    def _is_worth_another_try(self, code: int) -> bool:
        return code in self._worth_another_try and self._tries_left > 0

    @property
    def _name(self) -> str:
        return "W&B" if self._task.sink == WANDB else "TensorBoard"

    def _close(self) -> None:
        assert self._process is not None
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._process, self._received = None, b""


class FollowerProcesses:
    """All processes that follow a run."""

    def __init__(self, tasks: list[Task], environment: Mapping[str, str], retry_seconds: float = RETRY_SECONDS) -> None:
        self._run = tasks[0].run
        self._sinks = [SinkProcess(task, environment, retry_seconds) for task in tasks]

    @property
    def are_done(self) -> bool:
        """Whether all processes have ended."""
        return all(sink.is_done for sink in self._sinks)

    @property
    def sent_everything(self) -> bool:
        """Whether all processes have ended with everything sent."""
        return all(sink.is_done and sink.code == 0 for sink in self._sinks)

    def poll(self) -> list[str]:
        """The messages since the last call. Never blocks."""
        return [line for sink in self._sinks for line in sink.poll()]

    def order_finish(self, seconds: float | None = None, tries: float = math.inf) -> None:
        """Order all to send the rest and end, within ``seconds`` if given, each with at most ``tries`` restarts."""
        for sink in self._sinks:
            sink.order_finish(seconds, tries)

    def finish(self, seconds: float) -> list[str]:
        """Wait up to ``seconds`` for the rest to be sent, less if there is no progress, then end all processes.

        Returns a message if not everything is sent.
        """
        started = time.monotonic()
        self.order_finish(seconds)
        while not self.are_done and time.monotonic() < started + seconds:
            if self.get_nowhere and time.monotonic() > started + IN_VAIN_SECONDS:
                break
            self.poll()
            time.sleep(0.05)
        self.end()
        return (
            [] if self.sent_everything else [f"not everything is sent yet; the rest goes with: meds track {self._run}"]
        )

    @property
    def get_nowhere(self) -> bool:
        """Whether none of the remaining processes makes progress."""
        return all(sink.gets_nowhere for sink in self._sinks if not sink.is_done)

    def end(self) -> None:
        """Kill all processes."""
        for sink in self._sinks:
            sink.end()


def tasks_for(
    paths: RunPaths,
    to: Destinations,
    environment: Mapping[str, str],
    poll_seconds: float = POLL_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> list[Task]:
    """Tasks for TensorBoard, and for W&B if the environment requests it."""
    wanted = {TENSORBOARD: replace(to, archive=None)}  # TensorBoard has no artifacts
    if wandb_wanted(environment):
        wanted[WANDB] = to
    return [Task(sink, str(paths.root), of_sink, poll_seconds, patience_seconds) for sink, of_sink in wanted.items()]


@contextmanager
def following_process(
    paths: RunPaths, to: Destinations, environment: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[FollowerProcesses]:
    """Follow the run in ``paths`` during the block; call `poll` for messages. The last messages go to ``say``."""
    followers = FollowerProcesses(tasks_for(paths, to, environment), environment)
    try:
        yield followers
    finally:
        try:
            for line in followers.finish(FINISH_SECONDS):
                say(line)
        finally:
            followers.end()
