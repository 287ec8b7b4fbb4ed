"""Process families: the descendants of a process, marked by an environment variable, end together with it.

Otherwise the children of a killed process survive, and those of vLLM keep their GPU.

`end_children_with_this_process` runs this module as a script, which waits until its parent ends and kills the rest
of the family.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

MARK = "MEDS_PROCESS_FAMILY"
POLL_SECONDS = 1.0
TRIES = 20


def end_children_with_this_process() -> None:
    """Make child processes started from now on end when this process ends, even if it is killed.

    The children are identified by an environment variable, which a process keeps after its parent has ended.
    """
    family = uuid.uuid4().hex
    os.environ[MARK] = family
    subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, str(os.getpid()), family],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # survives signals sent to the parent
    )


def family_members(family: str) -> list[int]:
    """Return this user's processes that have the family's mark."""
    mark = f"{MARK}={family}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # the process belongs to another user or has ended
            continue
    return found


def end_family(family: str, but: int) -> None:
    """Kill the processes with the mark ``family``, except the process ``but``, and wait until they have ended."""
    for _ in range(TRIES):
        try:
            members = [process for process in family_members(family) if process != but]
        except OSError:  # this process has too many open files to read /proc
            time.sleep(0.05)
            continue
        if not members:
            return
        _kill(members)
        time.sleep(0.05)


def _kill(processes: list[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _watch(parent: int, family: str) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    empty_looks = 0
    while empty_looks < 2:  # a child that is being started has no mark yet
        left = [process for process in family_members(family) if process != os.getpid()]
        _kill(left)
        empty_looks = 0 if left else empty_looks + 1
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
