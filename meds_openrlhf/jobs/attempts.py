"""Retries: a job that failed in a way that another attempt may fix is submitted again with --resume."""

from __future__ import annotations

from collections.abc import Callable

from meds_openrlhf.config import ConfigError
from meds_openrlhf.jobs.log_stream import End, Ending

# Exit codes for wrong settings, a missing command, and Ctrl-C.
_FINAL_EXIT_CODES = (2, 126, 127, 130)


def attempts(
    submit: Callable[[int], str],
    follow: Callable[[str], Ending],
    retries: int,
    say: Callable[[str], None],
    wait: Callable[[], None],
) -> Ending:
    """Submit and follow a job; retry if another attempt may fix its failure. ``submit(n)`` starts the n-th attempt."""
    name = submit(1)
    ending = follow(name)
    for attempt in range(2, retries + 2):
        if not _is_worth_retrying(ending):
            break
        say(f"{name} {ending.end.value} ({ending.reason}); attempt {attempt} of {retries + 1} continues with --resume")
        wait()
        try:
            name = submit(attempt)
            ending = follow(name)
        except ConfigError as error:  # the head may be starting up again
            ending = Ending(End.FAILED, None, str(error))
    say(f"{name} {ending.end.value}" + ("" if ending.end is End.SUCCEEDED else f" ({ending.reason})"))
    return ending


def _is_worth_retrying(ending: Ending) -> bool:
    failed = ending.end in (End.FAILED, End.LOST)
    return failed and ending.driver_exit_code not in _FINAL_EXIT_CODES
