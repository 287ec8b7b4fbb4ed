"""Ctrl-C, SIGTERM (or SIGUSR1) and the watchdog: what can end a run from outside, turned into exceptions or a flag."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Interrupted(KeyboardInterrupt):
    """The user, or the node's owner, wants the run to end; ``signum`` is the signal."""

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum


class WatchdogExpired(KeyboardInterrupt):
    """Nothing was finished for too long."""


class Interruptions:
    """The state of one run's signals. While ``patient``, the watchdog and a first signal are only noted."""

    def __init__(self, watchdog_minutes: float | None) -> None:
        self.patient = False
        self.noted: int | None = None
        self.expired = False
        self.raised: KeyboardInterrupt | None = None
        self._seconds = 0.0 if watchdog_minutes is None else watchdog_minutes * 60

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if signum == signal.SIGALRM:
            self.expired = True
            if not self.patient:
                self._raise(WatchdogExpired())
            return
        if self.patient and self.noted is None:
            self.noted = signum
            return
        self._raise(Interrupted(signum, "interrupted; what was saved goes on with --resume"))

    def _raise(self, interruption: KeyboardInterrupt) -> NoReturn:
        self.raised = interruption
        raise interruption

    @contextmanager
    def themselves(self) -> Iterator[None]:
        """What a handler raises in one of Ray's blocking calls comes out as another KeyboardInterrupt: here as itself.

        Of a KeyboardInterrupt Ray knows that its call must end; any other exception waits until the call has returned.
        """
        try:
            yield
        except KeyboardInterrupt:
            if self.raised is None:
                raise
            raise self.raised from None

    def rewind_watchdog(self) -> None:
        """Something was finished: begin to count anew."""
        signal.setitimer(signal.ITIMER_REAL, self._seconds)


@contextmanager
def interruptible(watchdog_minutes: float | None) -> Iterator[Interruptions]:
    """Inside, the process's signals are ours. Only for the main thread; Ray's own handlers must be set before.

    The watchdog begins to count when it is rewound.
    """
    interruptions = Interruptions(watchdog_minutes)
    # SIGUSR1 is what Slurm's srun passes on; at SIGTERM it kills.
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
    before = {signum: signal.signal(signum, interruptions.handle) for signum in ours}
    try:
        with interruptions.themselves():
            yield interruptions
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in before.items():
            signal.signal(signum, handler)
