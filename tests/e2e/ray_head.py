"""A Ray cluster with a dashboard of its own, as a user would start one: `ray start --head`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.ports import free_ports

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class RayHead:
    """A running head."""

    address: str  # of its dashboard
    cluster: str  # what RAY_ADDRESS takes
    folder: Path  # where Ray keeps its logs and the jobs' files


@contextmanager
def ray_head(path: str, **environment: str) -> Iterator[RayHead]:
    """A head with eight made-up GPUs whose jobs find their commands in ``path``."""
    port, dashboard, agent, client = free_ports(4)
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: Ray keeps sockets below it
    command = [str(BIN / "ray"), "start", "--head", "--block", f"--port={port}", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}", f"--temp-dir={folder}"]
    command += ["--num-gpus=8", "--num-cpus=32", "--disable-usage-stats"]
    base = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")}
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen(
            command, env={**base, "PATH": path, **environment}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{dashboard}"
        _wait_until_they_answer(
            [f"{address}/api/jobs/", f"http://127.0.0.1:{agent}/api/local_raylet_healthz"], process, folder
        )
        yield RayHead(address, f"127.0.0.1:{port}", folder)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_they_answer(pages: list[str], process: subprocess.Popen, folder: Path, seconds: float = 120) -> None:
    """The dashboard takes a job and the node's agent starts it: a job that comes before both is refused."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if all(requests.get(page, timeout=5).ok for page in pages):
                return
        except requests.RequestException:
            pass
        time.sleep(0.5)
    raise TimeoutError(f"no head at {pages}: {(folder / 'head.log').read_text()[-2000:]}")
