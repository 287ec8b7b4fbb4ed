"""Children end with a parent that is killed."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from meds_openrlhf.runtime import processes
from tests.processes import is_alive, wait_until

PARENT = """
import subprocess, sys, time
from meds_openrlhf.runtime import processes
processes.end_children_with_this_process()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_familys_children_end_with_their_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not is_alive(child))


def test_a_process_that_cannot_look_for_a_family_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no_more(family: str) -> list[int]:
        asked.append(family)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(processes, "family_members", no_more)
    monkeypatch.setattr(processes, "TRIES", 2)
    processes.end_family("a", but=os.getpid())
    assert asked == ["a", "a"]
