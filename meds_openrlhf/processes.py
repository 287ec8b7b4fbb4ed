"""Families of processes: what a process has started, known by a mark in the environment, and ended with it.

A process that is killed leaves its children behind, and vLLM's would keep their GPU.

Run as a script, by `end_children_with_this_process`, it waits for its parent's death and ends what is left.
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
    """From now on the children that this process starts end with it, however it ends.

    They are known by a variable in their environment, which a process keeps when its parent is gone.
    """
    family = uuid.uuid4().hex
    os.environ[MARK] = family
    subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, str(os.getpid()), family],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends the parent shall not end this one with it
    )


def family_members(family: str) -> list[int]:
    """Processes of this user that carry the family's mark."""
    mark = f"{MARK}={family}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # another user's, or gone meanwhile
            continue
    return found


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


def _watch(parent: int, family: str) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    empty_looks = 0
    while empty_looks < 2:  # a child that was just being started carries no mark yet
        left = [process for process in family_members(family) if process != os.getpid()]
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        empty_looks = 0 if left else empty_looks + 1
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
