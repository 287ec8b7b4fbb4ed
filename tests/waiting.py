"""Waiting for what other processes do."""

import time
from collections.abc import Callable

DEADLINE = 600  # seconds, for a slow machine


def wait_until(happened: Callable[[], bool]) -> None:
    """Fail where it never happens."""
    deadline = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
