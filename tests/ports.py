"""Ports for servers of tests."""

import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports for servers that start some time later: from below the range that connections take theirs from."""
    found: list[int] = []
    while len(found) < count:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found
