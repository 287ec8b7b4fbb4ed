"""Waiting for what other processes do."""

import time
from collections.abc import Callable


def wait_until(happened: Callable[[], bool], seconds: float = 60) -> None:
    """Fail where it has not happened within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
