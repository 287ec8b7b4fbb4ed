"""The pool's gauges, read as Prometheus reads them: from the endpoint that Ray exports."""

import re
import time
import urllib.request
from pathlib import Path

import ray

from meds_openrlhf.memory.pool import GAUGES
from tests.conftest import RayCluster
from tests.memory.streams import stream
from tests.memory.test_pool import make_pool


def test_every_gauge_is_exported_for_every_shard(ray_cluster: RayCluster, tmp_path: Path) -> None:
    pool, _ = make_pool(tmp_path / "my-run" / "memory", 2)
    batches = stream(3)
    for step, rows in enumerate(batches, start=1):
        pool.observe(step, rows)
        ray.wait(pool._reclustering, num_returns=2, timeout=30)  # so that the next step hears of it
    pattern = re.compile(r'ray_(meds_memory_\w+)\{.*run="my-run".*shard="(\d)".*\} (\S+)|'
                         r'ray_(meds_memory_\w+)\{.*shard="(\d)".*run="my-run".*\} (\S+)')  # fmt: skip

    def exported() -> dict[tuple[str, str], float]:
        text = urllib.request.urlopen(ray_cluster.metrics).read().decode()
        return {(m[1] or m[4], m[2] or m[5]): float(m[3] or m[6]) for m in pattern.finditer(text)}

    def rows() -> float:
        return sum(value for (name, _), value in found.items() if name == "meds_memory_rows")

    deadline, found, stored = time.monotonic() + 60, exported(), pool.stats().rows
    while time.monotonic() < deadline and rows() < stored:  # what an earlier step said is exported first
        time.sleep(0.3)
        found = exported()
    assert rows() == stored
    assert set(found) == {(name, shard) for name in GAUGES for shard in "01"}
    assert found["meds_memory_cluster_seconds", "0"] > 0
