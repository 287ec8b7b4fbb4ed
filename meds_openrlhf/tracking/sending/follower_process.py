"""Start and stop the process that sends a run's metrics, during training or separately."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.processes import MARK, end_family
from meds_openrlhf.tracking.sending.sender import BUSY, PACE, REWOUND, Pace

PACKAGE = Path(__file__).parents[3]  # the folder that holds the package
FINISH_SECONDS, IN_VAIN_SECONDS = 30.0, 3.0  # at the end of a training run


class FollowerProcess:
    """The process, and a thread that starts it again ``pace.retry`` seconds after it ended with an error."""

    def __init__(self, paths: RunPaths, environment: Mapping[str, str], pace: Pace = PACE) -> None:
        self._paths, self._pace = paths, pace
        self._family = uuid.uuid4().hex
        # The package is in the working folder of a submitted job.
        path = os.pathsep.join(filter(None, [str(PACKAGE), environment.get("PYTHONPATH", "")]))
        self._environment = {**environment, MARK: self._family, "PYTHONPATH": path}
        self._environment.pop("WANDB_SERVICE", None)
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque()
        self._last_line = ""
        self._finishing, self._ended = threading.Event(), threading.Event()
        self._hurry = threading.Event()  # ends the wait for another start
        self.has_sent_everything = False
        self.stuck_since = math.inf  # `time.monotonic`
        self._thread = threading.Thread(target=self._keep_running, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the process has ended and will not be started again."""
        return not self._thread.is_alive()

    def poll(self) -> list[str]:
        """The lines for the user since the last call; a line that is repeated comes once. Never blocks."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def order_finish(self) -> None:
        """Order the process to send the rest and end."""
        self._finishing.set()
        self._hurry.set()
        self._pass_order_on()

    def finish(self, seconds: float, in_vain: float) -> list[str]:
        """Wait up to ``seconds`` for the rest to be sent, or ``in_vain`` seconds if nothing works, then kill it.

        Returns lines for the user.
        """
        started = time.monotonic()
        self.order_finish()
        while not self.is_done and time.monotonic() < min(started + seconds, max(started, self.stuck_since) + in_vain):
            self._thread.join(0.05)
        self.end()
        if self.has_sent_everything:
            return self.poll()
        return [*self.poll(), f"not everything is sent yet; the rest goes with: meds track {self._paths.root}"]

    def end(self) -> None:
        """Kill the process and all its children."""
        self._ended.set()
        self._hurry.set()
        while not self.is_done:
            if (process := self._process) is not None:
                process.kill()
            self._thread.join(0.05)

    def _keep_running(self) -> None:
        while not self._ended.is_set():
            code = self._run()
            if code == 0:
                self.has_sent_everything = True
                return
            if code == REWOUND:
                continue
            self.stuck_since = min(self.stuck_since, time.monotonic())
            self._hurry.wait(self._pace.retry)
            self._hurry.clear()

    def _run(self) -> int | None:
        """Run the process once; returns its exit code, None if it cannot be started, as with a full disk."""
        command = [sys.executable, "-m", "meds_openrlhf.tracking.sending.follower", str(self._paths.root)]
        try:
            with self._paths.tracking_log.open("ab") as errors:
                process = subprocess.Popen(
                    [*command, *map(str, self._pace)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=self._environment,
                    text=True,
                    start_new_session=True,  # Ctrl-C goes to the training run, which then orders to finish
                )
        except OSError as error:
            self._say(f"the process that sends metrics cannot be started ({error}); it is tried again")
            return None
        with process:
            self._process, self.stuck_since = process, math.inf
            if self._finishing.is_set():
                self._pass_order_on()
            assert process.stdout is not None
            for text in process.stdout:
                lines, is_stuck = json.loads(text)
                for line in lines:
                    self._say(line)
                self.stuck_since = min(self.stuck_since, time.monotonic()) if is_stuck else math.inf
        self._process = None
        end_family(self._family)
        if process.returncode not in (0, BUSY, REWOUND) and not self._ended.is_set():
            log = self._paths.tracking_log
            self._say(f"the process that sends metrics ended ({process.returncode}, see {log}); it is started again")
        return process.returncode

    def _pass_order_on(self) -> None:
        if (process := self._process) is not None and process.stdin is not None:
            with suppress(OSError, ValueError):  # it has just ended
                os.write(process.stdin.fileno(), b"finish\n")

    def _say(self, line: str) -> None:
        if line != self._last_line:
            self._lines.append(line)
            self._last_line = line


@contextmanager
def following_process(
    paths: RunPaths, environment: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[FollowerProcess]:
    """Follow the run in ``paths`` during the block; call `poll` for messages. The last messages go to ``say``."""
    follower = FollowerProcess(paths, environment)
    try:
        yield follower
    finally:
        try:
            for line in follower.finish(FINISH_SECONDS, IN_VAIN_SECONDS):
                say(line)
        finally:
            follower.end()
