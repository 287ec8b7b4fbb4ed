"""Children end with a parent that is killed."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from meds_openrlhf.runtime import processes
from tests.processes import is_alive

PARENT = """
import subprocess, sys, time
from meds_openrlhf.runtime import processes
if sys.argv[1] == "watched":
    processes.end_children_with_this_process()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def child_after_the_parent_was_killed(kind: str) -> int:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, kind], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(1.0)  # the watcher starts
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    return child


def test_a_watched_familys_children_end_with_their_parent() -> None:
    child = child_after_the_parent_was_killed("watched")
    deadline = time.monotonic() + 60
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_alive(child)


def test_without_a_watcher_they_would_not() -> None:
    child = child_after_the_parent_was_killed("unwatched")
    time.sleep(2.0)
    assert is_alive(child)
    subprocess.run(["kill", "-9", str(child)], check=True)


def test_a_process_that_cannot_look_for_a_family_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no_more(family: str) -> list[int]:
        asked.append(family)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(processes, "family_members", no_more)
    monkeypatch.setattr(processes, "TRIES", 2)
    processes.end_family("a", but=os.getpid())
    assert asked == ["a", "a"]
