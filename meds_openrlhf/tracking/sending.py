"""Sends a run to its trackers while it is trained, or later (`meds track`): a daemon thread for each tracker.

A thread follows the run's files and waits for its tracker alone. If a tracker hangs or fails, its thread falls behind
and tries again every minute; the other trackers do not notice, and neither does the training.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from meds_openrlhf.locks import try_lock
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.redaction import described, without_keys
from meds_openrlhf.tracking.run_lines import RunLines
from meds_openrlhf.tracking.trackers import TRACKERS, TrackedRun, Tracker, abandon

POLL_SECONDS, PATIENCE_SECONDS, RETRY_SECONDS = 1.0, 20.0, 60.0
FINISH_SECONDS = 30.0  # for the rest, when training ends
AT_ONCE = 100  # lines for which a tracker has PATIENCE_SECONDS

logger = logging.getLogger(__name__)


class Trackers:
    """Sends the run in ``paths`` to the trackers ``packages``, and from `finishing` on only what is there.

    Steps after ``first_step`` are sent even if a tracker has them, because a resumed run repeats them. A failure after
    `finishing` is set is a tracker's last, unless ``patient``. Raises ConfigError if the run's configuration is wrong.
    """

    def __init__(
        self, paths: RunPaths, packages: list[str], *, first_step: float = math.inf, patient: bool = False
    ) -> None:
        _log_to(paths.tracking_log)
        self._folder = paths.root
        self._lines: SimpleQueue[str] = SimpleQueue()
        self.finishing = threading.Event()
        run = TrackedRun(paths, self._lines.put)
        self._senders = [_Sender(package, run, self.finishing, first_step, patient) for package in packages]
        for sender in self._senders:
            sender.start()

    @property
    def left(self) -> list[str]:
        """The names of the trackers to which not everything is sent."""
        return [sender.name for sender in self._senders if not sender.is_done]

    def are_at_work(self, patience: float = math.inf) -> bool:
        """Whether a thread still sends, and has not waited for its tracker for more than ``patience`` seconds."""
        since = time.monotonic() - patience
        return any(sender.is_alive() and sender.waiting_since > since for sender in self._senders)

    def poll(self) -> list[str]:
        """The lines for the user since the last call. Never blocks."""
        for sender in self._senders:
            sender.report()
        return [self._lines.get() for _ in range(self._lines.qsize())]

    def finish(self, seconds: float = FINISH_SECONDS) -> list[str]:
        """Send the rest within ``seconds``; returns the last lines for the user."""
        self.finishing.set()
        deadline = time.monotonic() + seconds
        try:
            for sender in self._senders:
                sender.join(max(0.0, deadline - time.monotonic()))
            rest = f"not everything was sent to {', '.join(self.left)}. Send the rest with: meds track {self._folder}"
            return [*self.poll(), *([rest] if self.left else [])]
        finally:
            for sender in self._senders:
                sender.is_abandoned = True  # another try would start another process of W&B's
            abandon()


class _Sender(threading.Thread):
    """Sends a run to one tracker; see `Trackers`."""

    def __init__(
        self, package: str, run: TrackedRun, finishing: threading.Event, first_step: float, patient: bool
    ) -> None:
        title, self._open = TRACKERS[package]
        super().__init__(name=title, daemon=True)
        self._run, self._finishing, self._first_step = run, finishing, first_step
        self._giving_up = threading.Event() if patient else finishing
        self._lock = run.paths.root / f".tracking-{package}.lock"
        self._error: str | None = None
        self._told: str | None = None  # the trouble that the user knows of
        self.waiting_since = math.inf  # for an answer of the tracker; `time.monotonic`
        self.is_done = self.is_abandoned = False

    def run(self) -> None:
        """Send everything, in another session after one that failed."""
        while not self.is_done:
            is_last = self._giving_up.is_set()
            try:
                with self._lock.open("w") as lock:
                    if not try_lock(lock.fileno(), optional=True):
                        raise RuntimeError("another process already sends this run")
                    self._send_run()
                self.is_done, self.waiting_since = True, math.inf
            except Exception as error:  # whatever a library raises
                logger.exception(self.name)
                missing = error.name if isinstance(error, ModuleNotFoundError) else None
                extra = missing if missing in ("swanlab", "mlflow") else "track"
                hint = f"{missing} is not installed; pip install 'meds-openrlhf[{extra}]'"
                self._error = hint if missing else described(error)
                self.waiting_since = math.inf
                if is_last or self.is_abandoned:
                    return
                self._giving_up.wait(RETRY_SECONDS)

    def _send_run(self) -> None:
        lines = RunLines(self._run.paths)
        tracker: Tracker | None = None  # opened when there is something to send
        while True:
            is_last = self._finishing.is_set()  # before reading, so that all lines written until then are read
            new = lines.read_new()
            self.waiting_since = time.monotonic()
            if new and tracker is None:
                tracker, first_step = self._open(self._run), self._first_step
            if tracker is not None:
                new = [line for line in new if line.step > min(first_step, tracker.sent.get(line.stream, -1))]
                for start in range(0, len(new), AT_ONCE):
                    tracker.send(new[start : start + AT_ONCE])
                    self.waiting_since = time.monotonic()
                    self._first_step = math.inf  # the tracker's ``sent`` counts from now on
                self._error = None
            if is_last and not new:
                if tracker is not None:
                    tracker.close()
                return
            self.waiting_since = math.inf
            self._finishing.wait(POLL_SECONDS)

    def report(self) -> None:
        """Tell the user when a problem begins, changes or ends."""
        is_silent = time.monotonic() > self.waiting_since + PATIENCE_SECONDS
        trouble = f"no answer for {PATIENCE_SECONDS:g} s" if is_silent else self._error
        if trouble == self._told:
            return
        self._told = trouble
        rest = f"Training continues; the rest is sent later, or with: meds track {self._run.paths.root}"
        news = f"{trouble}. {rest}" if trouble else "sending works again"
        self._run.say(f"{self.name}: {news}")


class _WithoutKeys(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_keys(super().format(record))


def _log_to(path: Path) -> None:
    """Write what the trackers' clients log to ``path`` instead of the console; a full disk must not end the run."""
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(_WithoutKeys("%(asctime)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    for name in (__name__, "mlflow", "opentelemetry", "swanlab", "urllib3", "wandb"):
        logging.getLogger(name).handlers = [handler]
        logging.getLogger(name).propagate = False
