"""Sends a run to its trackers while it is trained, or later (`meds track`): a daemon thread for each tracker.

A thread follows the run's files and waits for its tracker alone. If a tracker hangs or fails, its thread falls behind
and tries again every minute; the other trackers do not notice, and neither does the training.
"""

from __future__ import annotations

import logging
import math
import os
import textwrap
import threading
import time
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from meds_openrlhf.config.credentials import without_keys
from meds_openrlhf.config.errors import how_to_install
from meds_openrlhf.files import open_file, open_own
from meds_openrlhf.locks import try_lock
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.step_log import whole_lines
from meds_openrlhf.tracking.trackers import STREAMS, TRACKERS, RunLine, TrackedRun, Tracker, abandon

POLL_SECONDS, PATIENCE_SECONDS, RETRY_SECONDS = 1.0, 20.0, 60.0
FINISH_SECONDS = 30.0  # for the rest, when training ends

logger = logging.getLogger(__name__)


class Trackers:
    """Sends the run in ``paths`` to the trackers ``packages``; after `finishing`, what remains.

    Steps after ``first_step`` are sent even if a tracker has them, because a resumed run repeats them. For a run that
    may be ``of_others``, nothing is written outside of its folder. Raises ConfigError if its configuration is wrong.
    """

    def __init__(
        self, paths: RunPaths, packages: list[str], *, first_step: float = math.inf, of_others: bool = False
    ) -> None:
        _log_to(paths.tracking_log)
        self._folder = paths.root
        self.finishing, self.ending = threading.Event(), threading.Event()
        run = TrackedRun(paths, of_others)
        self._senders = [_Sender(package, run, self, first_step) for package in packages]
        for sender in self._senders:
            sender.start()

    @property
    def left(self) -> list[str]:
        """The names of the trackers to which not everything is sent."""
        return [sender.name for sender in self._senders if not sender.is_done]

    @property
    def are_stuck(self) -> bool:
        """Whether each tracker that is left fails or does not answer, by the last `poll`."""
        return all(sender.is_done or sender.trouble for sender in self._senders)

    def poll(self) -> list[str]:
        """The lines for the user since the last call. Never blocks."""
        return [line for sender in self._senders for line in sender.news()]

    def finish(self, seconds: float = FINISH_SECONDS) -> list[str]:
        """Send the rest within ``seconds``, trying once more what has failed; returns the last lines for the user."""
        self.finishing.set()
        self.ending.set()
        deadline = time.monotonic() + seconds
        try:
            for sender in self._senders:
                sender.join(max(0.0, deadline - time.monotonic()))
            rest = f"not everything was sent to {', '.join(self.left)}. Send the rest with: meds track {self._folder}"
            return [*self.poll(), *([rest] if self.left else [])]
        finally:
            abandon()


class _Sender(threading.Thread):
    """Sends a run to one tracker; see `Trackers`. A failure after ``ending`` is its last."""

    def __init__(self, package: str, run: TrackedRun, trackers: Trackers, first_step: float) -> None:
        title, self._open = TRACKERS[package]
        super().__init__(name=title, daemon=True)
        self._run, self._trackers, self._first_step = run, trackers, dict.fromkeys(STREAMS, first_step)
        self._lock = run.paths.tracking_lock(package)
        self._waiting_since = math.inf  # for an answer of the tracker; `time.monotonic`
        self._error: str | None = None
        self.trouble: str | None = None  # what was last reported to the user
        self.is_done = False

    def run(self) -> None:
        """Send everything, in another session after one that failed."""
        while not self.is_done:
            try:
                with open_own(self._lock) as lock:
                    if not try_lock(lock.fileno(), optional=True):
                        raise RuntimeError("another process already sends this run")
                    self._send_run()
                self.is_done, self._waiting_since = True, math.inf
            except Exception as error:  # whatever a library raises
                logger.exception(self.name)
                self._error, self._waiting_since = _described(error), math.inf
                if self._trackers.ending.is_set():
                    return  # a retry could start a second W&B process that is never stopped
                self._trackers.ending.wait(RETRY_SECONDS)

    def _send_run(self) -> None:
        files: dict[str, BinaryIO] = {}
        try:
            self._send_lines(files)
        finally:
            for file in files.values():
                file.close()

    def _send_lines(self, files: dict[str, BinaryIO]) -> None:
        first_step = dict(self._first_step)
        tracker: Tracker | None = None  # opened when there is something to send
        is_last = False
        while not is_last:
            is_last = self._trackers.finishing.is_set()  # before reading, so that all lines written until then are read
            for line in new_lines(self._run.paths, files):
                self._waiting_since = time.monotonic()
                tracker = tracker or self._open(self._run)
                if line.step > min(first_step[line.stream], tracker.sent.get(line.stream, -1)):
                    tracker.send(line)
                    self._error, self._first_step[line.stream] = None, math.inf  # from now on ``sent`` decides
            self._error, self._waiting_since = None, math.inf
            self._trackers.finishing.wait(POLL_SECONDS)
        if tracker:
            self._waiting_since = time.monotonic()
            tracker.close()

    def news(self) -> list[str]:
        """A line for the user when a problem begins, changes or ends."""
        is_silent = time.monotonic() > self._waiting_since + PATIENCE_SECONDS
        trouble = f"no answer for {PATIENCE_SECONDS:g} s" if is_silent else self._error
        if trouble == self.trouble:
            return []
        self.trouble = trouble
        rest = f"Training continues; the rest is sent later, or with: meds track {self._run.paths.root}"
        return [f"{self.name}: {trouble}. {rest}" if trouble else f"{self.name}: sending works again"]


def new_lines(paths: RunPaths, files: dict[str, BinaryIO]) -> list[RunLine]:
    """Read a run's complete lines that are new since ``files`` were read last, sorted by step; opens files into it.

    Raises RuntimeError if the run was resumed meanwhile.
    """
    lines: list[RunLine] = []
    for stream, path in zip(STREAMS, (paths.metrics, paths.evaluations, paths.clusters)):
        if stream not in files and path.exists():
            files[stream] = open_file(path)
        if file := files.get(stream):
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise RuntimeError("the run was resumed, which replaces its files; they are read again from the start")
            lines += [RunLine(stream, int(values.pop("step")), values) for values in whole_lines(file, path)]
    return sorted(lines, key=lambda line: line.step)


def _described(error: Exception) -> str:
    """An error in one short line without secrets, which names the extra of a missing package."""
    if isinstance(error, ModuleNotFoundError):
        extra = error.name if error.name in ("swanlab", "mlflow") else "track"
        return f"{error.name} is not installed; {how_to_install(extra)}"
    return textwrap.shorten(without_keys(f"{type(error).__name__}: {error}"), 200)


class _Log(logging.FileHandler):
    """What the trackers' clients log, without keys; a full disk must not end the run."""

    def format(self, record: logging.LogRecord) -> str:
        return without_keys(super().format(record))

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(open_own(Path(self.baseFilename)), encoding="utf-8", write_through=True)

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # of opening the file
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Do not print it."""


def _log_to(path: Path) -> None:
    """Write the clients' warnings and errors to ``path`` instead of the console."""
    handler = _Log(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    for name in ("meds_openrlhf.tracking", "mlflow", "opentelemetry", "swanlab", "urllib3", "wandb"):
        logging.getLogger(name).handlers = [handler]
        logging.getLogger(name).propagate = False
