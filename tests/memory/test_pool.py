"""The pool over real Ray actors: the same answers on any number of shards, after a death, after a restore."""

import os
import re
import signal
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray

from meds_openrlhf.config import ConfigError
from meds_openrlhf.features.moments import Moments
from meds_openrlhf.memory import pool as pool_module
from meds_openrlhf.memory.branch import rewrite_memory
from meds_openrlhf.memory.pool import GAUGES, MemoryPool, start_shards
from meds_openrlhf.memory.rows import Sharding, layer_logits_of
from meds_openrlhf.memory.shard import MemoryAnswer, MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, write_format
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import MemoryPaths
from tests.conftest import RayCluster
from tests.memory.streams import LAYERS, stream

FORMAT = MemoryFormat(shards=1, layers=LAYERS, model={})

pytestmark = pytest.mark.usefixtures("ray_cluster")


def make_pool(root: Path, shards: int, **changes: int) -> tuple[MemoryPool, list]:
    memory_format = replace(FORMAT, shards=shards, **changes)
    options = [{"num_cpus": 0.1}] * shards
    handles = start_shards(MemoryPaths(root), memory_format, ShardSettings(layers=LAYERS), options)
    pool = MemoryPool(handles, root, memory_format)
    return pool, handles


def expected_answers(root: Path, batches: list[pa.RecordBatch]) -> list[tuple[list[int], list[int]]]:
    """What one shard in this process answers."""
    shard = MemoryShard(MemoryPaths(root), Sharding(0, 1), ShardSettings(layers=LAYERS))
    return answers_of([shard.observe(step, rows) for step, rows in enumerate(batches, start=1)])


def kill(handles: list) -> None:
    """For good, as the end of a run does; waits until the folders are free."""
    for handle in handles:
        process = ray.get(handle.__ray_call__.remote(lambda self: os.getpid()))
        ray.kill(handle)
        while Path(f"/proc/{process}").exists():
            time.sleep(0.05)


def run(pool: MemoryPool, batches: list[pa.RecordBatch], first: int = 1) -> list[MemoryAnswer]:
    return [pool.observe(step, rows) for step, rows in enumerate(batches, start=first)]


def answers_of(answers: list[MemoryAnswer]) -> list[tuple[list[int], list[int]]]:
    return [(answer.label.tolist(), answer.size.tolist()) for answer in answers]


def test_the_number_of_shards_and_the_order_of_rows_change_nothing(tmp_path: Path) -> None:
    batches = stream(6)
    shuffled = batches[5].take(pa.array(np.random.default_rng(7).permutation(len(batches[5]))))
    pool, _ = make_pool(tmp_path / "three", 3)
    got, expected = run(pool, batches[:5]), expected_answers(tmp_path / "one", batches)
    assert answers_of(got) == expected[:5]
    assert sum((answer.size > 0).sum() for answer in got) > 10
    last = pool.observe(6, shuffled)
    by_sample = dict(zip(batches[5].column("sample").to_pylist(), expected[5][1]))
    assert [by_sample[sample] for sample in shuffled.column("sample").to_pylist()] == last.size.tolist()
    assert last.stats.rows == sum(map(len, batches))
    everything = np.concatenate([layer_logits_of(batch)[:, LAYERS // 2 :] for batch in batches]).astype(np.float64)
    np.testing.assert_allclose(last.moments.scatter, Moments.of(everything).scatter, rtol=1e-9)


def test_a_shard_that_is_killed_comes_back_with_its_rows(tmp_path: Path) -> None:
    batches = stream(6)
    pool, handles = make_pool(tmp_path / "killed", 2)
    got = run(pool, batches[:3])
    for step in (4, 5, 6):  # every time, not once
        for handle in handles:
            os.kill(ray.get(handle.__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)
        got += run(pool, batches[step - 1 : step], first=step)
    assert answers_of(got) == expected_answers(tmp_path / "whole", batches)


def test_restore_repeats_the_steps_after_the_snapshot(tmp_path: Path) -> None:
    batches = stream(6)
    pool, handles = make_pool(tmp_path, 2)
    write_format(MemoryPaths(tmp_path), replace(FORMAT, shards=2))
    before = run(pool, batches[:3])
    pool.snapshot("global_step3")
    after = run(pool, batches[3:], first=4)
    kill(handles)
    rewrite_memory(MemoryPaths(tmp_path), replace(FORMAT, shards=3))
    resumed, _ = make_pool(tmp_path, 3)
    assert resumed.restore("global_step3").rows == before[-1].stats.rows
    assert answers_of(run(resumed, batches[3:], first=4)) == answers_of(after)
    assert resumed.stats().rows == sum(map(len, batches))


def test_a_snapshot_of_another_model_and_other_rows_of_a_step_are_refused(tmp_path: Path) -> None:
    pool, handles = make_pool(tmp_path, 1)
    run(pool, stream(2))
    pool.snapshot("global_step2")
    rows = pool.stats().rows
    for change in ({"model": {"architecture": "Other"}}, {"layers": LAYERS + 1}):
        other = MemoryPool(handles, tmp_path, replace(FORMAT, **change))
        with pytest.raises(ConfigError, match=r"meds.run_dir=.*: holds the memory of another model or feature"):
            other.restore("global_step2")
    assert pool.stats().rows == rows
    with pytest.raises(ValueError, match="a step is observed only once"):
        pool.observe(2, stream(2)[1].slice(2))  # other rows for a step that is stored


def test_restore_to_nothing_then_prune(tmp_path: Path) -> None:
    pool, _ = make_pool(tmp_path, 2, step_offset=100)
    write_format(MemoryPaths(tmp_path), replace(FORMAT, shards=2, step_offset=100))
    run(pool, stream(2))
    assert [step for step, _ in open_memory(tmp_path).rows_by_step()] == [101, 102]  # a branch counts from its origin
    for name in ("global_step1", "global_step2"):
        pool.snapshot(name)
    pool.prune_snapshots({"global_step2"})
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["global_step2.json"]
    assert pool.restore(None).rows == 0
    assert not list(tmp_path.glob("shard-*/*.arrow"))


class PatientShard(MemoryShard):
    """Clusters only once a file is there."""

    def recluster(self) -> float:
        while not (self._log._folder.parent / "go").exists():
            time.sleep(0.05)
        return super().recluster()


def test_no_step_waits_for_a_clustering_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MemoryShard", PatientShard)
    pool, handles = make_pool(tmp_path, 2)
    batches = stream(4)
    got = run(pool, batches)  # returns, though nothing has been clustered but what the steps needed
    (tmp_path / "go").touch()
    ray.get(pool._reclustering)
    assert answers_of(got) == expected_answers(tmp_path / "one", batches)
    kill(handles)


def test_every_gauge_is_exported_for_every_shard(ray_cluster: RayCluster, tmp_path: Path) -> None:
    pool, _ = make_pool(tmp_path / "my-run" / "memory", 2)
    for step, batch in enumerate(stream(3), start=1):
        pool.observe(step, batch)
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
