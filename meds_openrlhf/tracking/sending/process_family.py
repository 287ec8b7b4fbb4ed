"""Ending a process and all that it started, known by the mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from meds_openrlhf.orphans import family_members

TRIES = 20


def end_family(family: str | None, but: int | None = None) -> None:
    """Kill the processes that carry the mark ``family``, the process ``but`` excepted, and see them gone."""
    if family is None:
        return
    for _ in range(TRIES):
        try:
            members = [process for process in family_members(family) if process != but]
        except OSError:  # this process has too many files open to look
            time.sleep(0.05)
            continue
        if not members:
            return
        for process in members:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
