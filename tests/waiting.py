"""Waiting for what other processes do."""

import time
from collections.abc import Callable


def wait_until(happened: Callable[[], bool]) -> None:
    """Fail where it has not happened within a minute."""
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
