"""A thread that sends a run to a tracker, in sessions: after one that failed, there is another after a minute."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from meds_openrlhf.config import RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.redaction import HIDDEN, redacted, secrets_of
from meds_openrlhf.tracking.sending.run_lines import RewoundError, RunLines
from meds_openrlhf.tracking.sending.tracking_state import TrackingState, change_state

# Exit codes besides 0 (everything is sent) and 1: another process sends this run; the run was resumed, begin again.
BUSY, REWOUND = 75, 76


class Pace(NamedTuple):
    """Seconds between two looks at the run's files, until silence is reported, and from a failure to another try."""

    poll: float
    patience: float
    retry: float


PACE = Pace(1.0, 20.0, 60.0)


class Session:
    """Sends a run's lines to a tracker, opened when there is something to send. ``say`` takes lines for the user."""

    is_open = False  # whether another session would need another process
    waiting_since: float | None = None  # since when the tracker owes an answer (`time.monotonic`)

    def __init__(
        self, paths: RunPaths, config: RunConfig, environment: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._paths, self._config, self._environment, self._say = paths, config, environment, say
        self._lines = RunLines(paths, {})

    def send_new(self) -> bool:
        """Send new lines; returns whether there were any. Raises RewoundError, and what the tracker's client raises."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until everything sent has arrived, and close."""
        raise NotImplementedError

    def still_answers(self) -> bool:
        """Ask the tracker, whose answer is late, whether it is there; called by another thread."""
        return False

    def _ask(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Make a call that waits for the tracker, whose answer may be late."""
        self.waiting_since = self.waiting_since or time.monotonic()
        answer = call(*given, **named)
        self.waiting_since = None
        return answer

    def _note(self, change: Callable[[TrackingState], TrackingState]) -> TrackingState:
        """Write what the tracker has confirmed, unless the run was resumed meanwhile (RewoundError)."""

        def noted(state: TrackingState) -> TrackingState:
            self._lines.check_files()
            return change(state)

        return change_state(self._paths, noted)

    def _shown_config(self) -> dict[str, Any]:
        """The run's configuration without keys."""
        return redacted(yaml.safe_load(self._paths.config.read_text(encoding="utf-8")), self._environment)


class Sender(threading.Thread):
    """Sends the run in ``folder`` to the tracker ``name`` until ``finishing`` is set, and then the rest.

    ``exit_code`` is 0 if everything is sent, and another one if the rest needs another process.
    """

    def __init__(
        self, name: str, open_session: Callable[[], Session], folder: Path, finishing: threading.Event, pace: Pace
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._open_session, self._folder, self._finishing, self._pace = open_session, folder, finishing, pace
        self._session: Session | None = None
        self._error: str | None = None
        self._said: str | None = None
        self.exit_code: int | None = None

    def run(self) -> None:
        """Send everything."""
        while self.exit_code is None:
            try:
                self._session = self._open_session()
                self._follow(self._session)
                self.exit_code = 0
            except RewoundError:
                self.exit_code = REWOUND
            except Exception as error:  # whatever a library raises
                log(traceback.format_exc())
                if self._session is not None and self._session.is_open:
                    self.exit_code = 1
                    return
                self._session = None
                self._error = textwrap.shorten(without_keys(f"{type(error).__name__}: {error}"), 200)
                self._pause()

    def _pause(self) -> None:
        """Wait before another try; the order to finish is worth one at once."""
        if self._finishing.is_set():
            time.sleep(self._pace.retry)
        else:
            self._finishing.wait(self._pace.retry)

    @property
    def is_in_trouble(self) -> bool:
        """Whether the last news was bad."""
        return self._said is not None

    def news(self) -> str | None:
        """A line for the user when trouble begins, changes or ends."""
        trouble = self._trouble()
        if trouble == self._said:
            return None
        self._said = trouble
        if trouble is None:
            return f"{self.name}: sending works again"
        way_on = "training goes on. What is missing is sent when it works again, or by: meds track"
        return f"{self.name}: {trouble}; {way_on} {self._folder}"

    def _trouble(self) -> str | None:
        session = self._session  # which the thread may change at any time
        since = None if session is None else session.waiting_since
        if session is None or since is None or time.monotonic() < since + self._pace.patience:
            return self._error
        return self._error if session.still_answers() else f"no answer for {self._pace.patience:.0f} s"

    def _follow(self, session: Session) -> None:
        while True:
            last = self._finishing.is_set()  # before reading, so that all lines written before the order are read
            if session.send_new():
                self._error = None
            elif last:
                session.finish()
                return
            else:
                self._finishing.wait(self._pace.poll)


def log(text: str) -> None:
    """Write to stderr, the file ``tracking.log``; a full disk is no reason to end."""
    with suppress(OSError):
        sys.stderr.write(without_keys(text))
        sys.stderr.flush()


def without_keys(text: str) -> str:
    """Hide the values of environment variables that hold keys in ``text``."""
    for secret in secrets_of(os.environ):
        text = text.replace(secret, HIDDEN)
    return text
