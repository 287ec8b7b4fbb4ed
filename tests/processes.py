"""Processes of tests: servers with children, which are told to end together, their ports, and waiting for others."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

DEADLINE = 600  # seconds, for a slow machine


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


def ray_head_command(port: int) -> list[str]:
    """A head for `running`; further options may follow.

    Without a port for it, the server of Ray's clients, which nobody uses here, asks the node for the port of the agent
    of runtime environments. On a busy machine the node takes longer than the server waits, and with the server the
    whole head ends.
    """
    client, agent = free_ports(2)
    ports = [f"--port={port}", f"--ray-client-server-port={client}", f"--runtime-env-agent-port={agent}"]
    return [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats", *ports]


def has_a_node(port: int) -> bool:
    """Whether the head at ``port`` of this machine has a node, which may come in long after the head listens."""
    from ray._raylet import GcsClient

    try:
        return any(node.state == 0 for node in GcsClient(f"127.0.0.1:{port}").get_all_node_info(timeout=5).values())
    except Exception:  # it is not there yet, and Ray has many words for that
        return False


@contextmanager
def running(
    command: list[str], log: Path, ready: Callable[[], bool], environment: dict[str, str], starts: int = 1
) -> Iterator[None]:
    """A server that writes to ``log``, from when it is ready; it may end before that, and is then started again.

    Ray gives up on a head whose node has not come in after 30 seconds, which a busy machine may take.
    """
    try:
        deadline, process = time.monotonic() + 240, None
        while process is None or not ready():
            if process is None or (process.poll() is not None and starts):
                starts -= 1
                with log.open("a") as output:
                    words = {"env": environment, "stdout": output, "stderr": output, "start_new_session": True}
                    process = subprocess.Popen(command, **words)
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        yield
        assert process.poll() is None, f"ended before its tests did: {log.read_text()[-3000:]}"
    finally:
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def answers(page: str, token: str | None = None) -> bool:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        return urlopen(Request(page, headers=headers), timeout=5).status == 200
    except OSError:
        return False


def is_alive(process: int) -> bool:
    """Whether it runs; one that has ended and waits for its parent does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(happened: Callable[[], bool]) -> None:
    """Fail where it never happens."""
    deadline = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
