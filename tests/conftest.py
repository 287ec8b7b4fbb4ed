"""Settings of all tests, and the Ray cluster that those of them share which need one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from tests.ports import free_ports, wait_for_port

# No test is about time, and a busy machine is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is shared is made once: tests of one group run in one process, the groups that take longest first."""
    groups = {item: _group_of(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    first = {"head": 0, "tests/e2e/test_staying_alive.py": 1, "ray": 2}
    items.sort(key=lambda item: first.get(groups[item], len(first)))


def _group_of(item: pytest.Item) -> str:
    fixtures = getattr(item, "fixturenames", ())
    shared = [name for name, fixture in (("head", "head"), ("ray", "ray_cluster")) if fixture in fixtures]
    return shared[0] if shared else item.nodeid.partition("::")[0]


@dataclass(frozen=True)
class RayCluster:
    """A head with eight made-up GPUs and without a dashboard."""

    address: str
    metrics: str  # where Prometheus would read its gauges


@pytest.fixture(scope="session")
def ray_head() -> Iterator[RayCluster]:
    """A cluster of this machine, for the whole session."""
    port, client, metrics = free_ports(3)
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=16", "--num-gpus=8", "--include-dashboard=false", "--disable-usage-stats"]
    command += [f"--ray-client-server-port={client}", f"--metrics-export-port={metrics}"]
    command += ['--system-config={"metrics_report_interval_ms": 500}']
    # Ray would start a process for each CPU as soon as anybody connects.
    environment = {**os.environ, "RAY_enable_open_telemetry": "true", "RAY_prestart_worker_first_driver": "false"}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen(command, env=environment, **silent)
    try:
        wait_for_port(port)
        yield RayCluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


@pytest.fixture(scope="module")
def ray_cluster(ray_head: RayCluster) -> Iterator[RayCluster]:
    """The module is connected to the cluster; what it has started there ends with it."""
    import ray

    ray.init(address=ray_head.address, log_to_driver=False, logging_level="ERROR")
    yield ray_head
    ray.shutdown()
