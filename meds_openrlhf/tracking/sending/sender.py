"""A thread that sends a run to a tracker, in sessions: after one that failed, there is another after a minute."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from meds_openrlhf.tracking.redaction import HIDDEN, secrets_of
from meds_openrlhf.tracking.sending.run_lines import RewoundError


class Pace(NamedTuple):
    """Seconds between two looks at the run's files, until silence is reported, and from a failure to another try."""

    poll: float
    patience: float
    retry: float


PACE = Pace(1.0, 20.0, 60.0)


class Session:
    """Sends a run's lines to a tracker."""

    is_open = False  # whether another session would need another process
    waiting_since: float | None = None  # since when the tracker owes an answer (`time.monotonic`)

    def send_new(self) -> bool:
        """Send new lines; returns whether there were any."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until everything sent has arrived, and close."""
        raise NotImplementedError

    def still_answers(self) -> bool:
        """Ask the tracker, whose answer is late, whether it is there; called by another thread."""
        return False


class Sender(threading.Thread):
    """Sends the run in ``folder`` to the tracker ``name`` until ``finishing`` is set, and then the rest."""

    def __init__(
        self, name: str, open_session: Callable[[], Session], folder: Path, finishing: threading.Event, pace: Pace
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._open_session, self._folder, self._finishing, self._pace = open_session, folder, finishing, pace
        self._session: Session | None = None
        self._error: str | None = None
        self._said: str | None = None
        self.has_sent_everything = False
        self.needs_another_process = False
        self.was_rewound = False  # its last session ended because the run was resumed

    def run(self) -> None:
        """Send everything."""
        while not self.has_sent_everything:
            try:
                self._session = self._open_session()
                self._follow(self._session)
            except Exception as error:  # whatever a library raises
                self.was_rewound = isinstance(error, RewoundError)
                if not self.was_rewound:
                    log(traceback.format_exc())
                if self._session is not None and self._session.is_open:
                    self.needs_another_process = True
                    return
                self._session = None
                if not self.was_rewound:
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
                self.has_sent_everything = True
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
