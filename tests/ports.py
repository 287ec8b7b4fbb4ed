"""Ports for servers of tests."""

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager


def free_ports(count: int) -> list[int]:
    """Ports for servers that start some time later: from below the range that connections take theirs from."""
    found: list[int] = []
    draws = random.SystemRandom()  # tests that seed `random` alike would all get the same ports
    while len(found) < count:
        port = draws.randint(20_000, 32_000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


def wait_for_port(port: int, seconds: float = 60) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on port {port}")


@contextmanager
def silent_address() -> Iterator[str]:
    """The address of a server where nobody listens, on a port that nobody else takes meanwhile."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{deaf.getsockname()[1]}"
