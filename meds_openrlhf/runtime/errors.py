"""What ends a run before its time: Ctrl-C, SIGTERM, SIGUSR1 and the watchdog, as exceptions or a flag; and lost parts.

The module is light, so that the command line can import it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class RunLostError(RuntimeError):
    """An essential part of the run is lost; the run can be resumed from its last checkpoint."""


def innermost(error: BaseException) -> BaseException:
    """Return the original error; Ray wraps an error once for each worker that it passes through."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause  # type: ignore[attr-defined]
    return error


class Interrupted(KeyboardInterrupt):
    """The user or the cluster's scheduler requested the end of the run; ``signum`` is the signal."""

    def __init__(self, signum: int, message: str = "") -> None:
        super().__init__(message)
        self.signum = signum


class WatchdogExpired(KeyboardInterrupt):
    """The run made no progress for too long."""


class Interruptions:
    """The state of a run's signals. While ``patient``, the watchdog and the first signal are only recorded."""

    def __init__(self, watchdog_minutes: float | None) -> None:
        self.patient = False
        self.noted: int | None = None
        self.expired = False
        self.raised: KeyboardInterrupt | None = None
        self._seconds = 0.0 if watchdog_minutes is None else watchdog_minutes * 60

    def handle(self, signum: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if signum == signal.SIGALRM:
            self.expired = True
            if not self.patient:
                self._raise(WatchdogExpired())
            return
        if self.patient and self.noted is None:
            self.noted = signum
            return
        self._raise(Interrupted(signum))

    def _raise(self, interruption: KeyboardInterrupt) -> NoReturn:
        self.raised = interruption
        raise interruption

    @contextmanager
    def themselves(self) -> Iterator[None]:
        """Re-raise the handler's exception in place of the KeyboardInterrupt that Ray's blocking calls replace it with.

        Ray ends a blocking call only for a KeyboardInterrupt; other exceptions are delayed until the call returns.
        """
        try:
            yield
        except KeyboardInterrupt:
            if self.raised is None:
                raise
            raise self.raised from None

    def rewind_watchdog(self) -> None:
        """Restart the watchdog's timer after progress."""
        signal.setitimer(signal.ITIMER_REAL, self._seconds)


@contextmanager
def interruptible(watchdog_minutes: float | None) -> Iterator[Interruptions]:
    """Handle the process's signals in the block. Main thread only; Ray must have set its own handlers before.

    The watchdog starts at the first `rewind_watchdog`.
    """
    interruptions = Interruptions(watchdog_minutes)
    # Slurm's srun forwards SIGUSR1; on SIGTERM it kills the processes.
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
    before = {signum: signal.signal(signum, interruptions.handle) for signum in ours}
    try:
        with interruptions.themselves():
            yield interruptions
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in before.items():
            signal.signal(signum, handler)
