"""The pool over real Ray actors: the same answers on any number of shards, after a death, after a restore."""

import json
import os
import re
import signal
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray

from meds_openrlhf.config import ConfigError
from meds_openrlhf.features.moments import Moments
from meds_openrlhf.memory import pool as pool_module
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.pool import GAUGES, MemoryPool, start_shards
from meds_openrlhf.memory.rows import layer_logits_of
from meds_openrlhf.memory.shard import MemoryShard
from meds_openrlhf.memory.snapshot import rewrite_memory, write_format
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import MemoryPaths
from tests.conftest import RayCluster
from tests.memory.written import FORMAT, LAYERS, SETTINGS, answered, answered_by_one, run, stream
from tests.processes import wait_until

pytestmark = pytest.mark.usefixtures("ray_cluster")


def make_pool(root: Path, shards: int) -> tuple[MemoryPool, list]:
    memory_format = replace(FORMAT, shards=shards)
    options = [{"num_cpus": 0.1}] * shards
    handles = start_shards(MemoryPaths(root), memory_format, SETTINGS, options)
    return MemoryPool(handles, root, memory_format), handles


def process_of(handle: Any) -> int:
    return ray.get(handle.__ray_call__.remote(lambda self: os.getpid()))


def kill(handles: list) -> None:
    """For good, as the end of a run does; waits until the folders are free."""
    for handle in handles:
        process = process_of(handle)
        ray.kill(handle)
        wait_until(lambda: not Path(f"/proc/{process}").exists())  # noqa: B023 - it is waited for here


class PatientShard(MemoryShard):
    """Clusters only once a file is there."""

    def recluster(self) -> float:
        while not (self._log._folder.parent / "go").exists():
            time.sleep(0.05)
        return super().recluster()


def test_answers_do_not_depend_on_shards_order_or_timing(
    ray_cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a step wait for a clustering that is under way. Every gauge is exported for every shard."""
    monkeypatch.setattr(pool_module, "MemoryShard", PatientShard)
    batches, root = stream(6), tmp_path / "my-run" / "memory"
    shuffled = batches[5].take(pa.array(np.random.default_rng(7).permutation(len(batches[5]))))
    pool, _ = make_pool(root, 3)
    got = run(pool, batches[:5])  # returns, though nothing has been clustered but what the steps needed
    (root / "go").touch()
    ray.get(pool._reclustering)
    got += run(pool, [shuffled], first=6)
    assert [answered(answer) for answer in got] == answered_by_one(tmp_path / "one", batches)
    assert sum((answer.size > 0).sum() for answer in got) > 10
    last = got[-1]
    assert last.sample.tolist() == shuffled.column("sample").to_pylist()
    assert last.stats.rows == sum(map(len, batches))
    everything = np.concatenate([layer_logits_of(batch)[:, LAYERS // 2 :] for batch in batches]).astype(np.float64)
    np.testing.assert_allclose(last.moments.scatter, Moments.of(everything).scatter, rtol=1e-9)
    with pytest.raises(ValueError, match="Observe each step only once"):
        pool.observe(6, shuffled.slice(2))  # other rows for a step that is stored

    pattern = re.compile(r"ray_(meds_memory_\w+)\{(.*)\} (\S+)")
    found: dict[tuple[str, str], float] = {}

    def are_exported() -> bool:
        # Before Ray 2.57, a page of metrics that is read while the agent meets a new name stops the agent for good
        # (ray-project/ray#64946). The gauges' names are known to it after half a second, the interval of reports.
        time.sleep(5)
        with suppress(OSError):  # until the exporter listens
            page = urllib.request.urlopen(ray_cluster.metrics, timeout=60).read().decode()
            for name, tags, value in pattern.findall(page):
                if 'run="my-run"' in tags:
                    found[name, tags.partition('shard="')[2][:1]] = float(value)
        rows = sum(found.get(("meds_memory_rows", shard), 0) for shard in "012")
        return rows == last.stats.rows and len(found) >= 3 * len(GAUGES)

    wait_until(are_exported)  # what an earlier step said is exported first
    assert set(found) == {(name, shard) for name in GAUGES for shard in "012"}
    assert found["meds_memory_cluster_seconds", "0"] > 0


def test_a_shard_that_is_killed_comes_back_with_its_rows(tmp_path: Path) -> None:
    batches = stream(6)
    pool, handles = make_pool(tmp_path / "killed", 2)
    got = run(pool, batches[:3])
    for step in (4, 5, 6):  # every time, not once
        for handle in handles:
            if step == 5:
                ray.kill(handle, no_restart=False)
            else:
                os.kill(process_of(handle), signal.SIGKILL)
        got += run(pool, batches[step - 1 : step], first=step)
    assert [answered(answer) for answer in got] == answered_by_one(tmp_path / "whole", batches)


def test_restore_repeats_the_steps_after_the_snapshot(tmp_path: Path) -> None:
    """On another number of shards."""
    batches, on_two = stream(6), replace(FORMAT, shards=2)
    pool, handles = make_pool(tmp_path, 2)
    write_format(MemoryPaths(tmp_path), on_two)
    run(pool, batches[:2])
    pool.snapshot("global_step2")
    before = run(pool, batches[2:3], first=3)
    assert [step for step, _ in open_memory(tmp_path).rows_by_step()] == [1, 2, 3]
    pool.snapshot("global_step3")
    pool.prune_snapshots({"global_step3"})
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["global_step3.json"]
    for change in ({"model": {"architecture": "Other"}}, {"layers": LAYERS + 1}):
        other = MemoryPool(handles, tmp_path, replace(FORMAT, **change))
        with pytest.raises(ConfigError, match=r"meds.run_dir=.*: holds the memory of another model or feature"):
            other.restore("global_step3")
    after = run(pool, batches[3:], first=4)
    kill(handles)
    rewrite_memory(MemoryPaths(tmp_path), replace(on_two, shards=3))
    resumed, _ = make_pool(tmp_path, 3)
    assert resumed.restore("global_step3").rows == before[-1].stats.rows
    again = run(resumed, batches[3:], first=4)
    assert [answered(answer) for answer in again] == [answered(answer) for answer in after]
    assert resumed.stats().rows == sum(map(len, batches))
    assert resumed.restore(None).rows == 0
    assert not list(tmp_path.glob("shard-*/*.arrow"))


def test_a_last_step_with_rows_of_one_shard_alone_is_in_a_snapshot(tmp_path: Path) -> None:
    batches = stream(2)
    pool, _ = make_pool(tmp_path, 2)
    run(pool, batches[:1])
    one = batches[1].slice(0, 1)
    pool.observe(2, one)
    pool.snapshot("global_step2")
    pool.observe(3, one)
    assert pool.restore("global_step2").rows == len(batches[0]) + 1


def test_rows_in_a_folder_that_no_shard_reads_are_missed(tmp_path: Path) -> None:
    pool, _ = make_pool(tmp_path, 2)
    run(pool, stream(1))
    pool.snapshot("global_step1")
    manifest = MemoryPaths(tmp_path).snapshot("global_step1")
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "rows": {**content["rows"], "shard-0005": 4}}))
    with pytest.raises(MemoryCorruptionError, match=r"holds \d+ of the \d+ rows of its snapshot"):
        pool.restore("global_step1")
