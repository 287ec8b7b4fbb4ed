"""Ports for servers of tests."""

import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports for servers that start some time later: from below the range that connections take theirs from."""
    found: set[int] = set()
    draws = random.SystemRandom()  # tests that seed `random` alike would all get the same ports
    while len(found) < count:
        port = draws.randint(20_000, 32_000)
        found |= set() if listens(port) else {port}
    return list(found)


def listens(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
