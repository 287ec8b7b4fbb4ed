"""Servers of tests: processes with children, which are told to end together."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen


@contextmanager
def running(command: list[str], log: Path, ready: Callable[[], bool], environment: dict[str, str]) -> Iterator[None]:
    """A server that writes to ``log``, from when it is ready."""
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + 240
        while not ready():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def answers(page: str) -> bool:
    try:
        return urlopen(page, timeout=5).status == 200
    except OSError:
        return False
