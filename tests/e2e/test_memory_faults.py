"""Shards that die during a run: every answer is what it would have been."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from meds_openrlhf.memory.pool import MemoryPool, start_shards
from meds_openrlhf.memory.rows import Sharding
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat
from meds_openrlhf.paths import MemoryPaths
from meds_openrlhf.placement.groups import shard_options
from tests.memory.streams import LAYERS, stream

STEPS = 50
SHARDS = 3


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def process_of(shard: ray.actor.ActorHandle) -> int:
    return ray.get(shard.__ray_call__.remote(lambda self: os.getpid()), timeout=60)


@pytest.mark.slow
def test_fifty_steps_with_deaths_equal_fifty_without(cluster: None, tmp_path: Path) -> None:
    batches = stream(STEPS, prompts=12, per_step=6)
    whole = MemoryShard(MemoryPaths(tmp_path / "whole"), Sharding(0, 1), ShardSettings(layers=LAYERS))
    expected = [whole.observe(step, rows) for step, rows in enumerate(batches, 1)]

    group = placement_group([{"CPU": 1}] * SHARDS, strategy="PACK")
    ray.get(group.ready(), timeout=60)
    memory_format = MemoryFormat(shards=SHARDS, layers=LAYERS, model={})
    paths = MemoryPaths(tmp_path / "faulty")
    shards = start_shards(paths, memory_format, ShardSettings(layers=LAYERS), shard_options(group, SHARDS))
    pool = MemoryPool(shards, paths.root, memory_format)
    chosen = random.Random(0)

    def harm(step: int) -> None:
        if step in (5, 12, 30):
            os.kill(process_of(chosen.choice(shards)), signal.SIGKILL)
        if step == 20:
            ray.kill(chosen.choice(shards), no_restart=False)

    for step, (rows, want) in enumerate(zip(batches, expected), 1):
        harm(step)
        answer = pool.observe(step, rows)
        by_sample = {s: (label, size) for s, label, size in zip(want.sample, want.label, want.size)}
        got = zip(answer.label.tolist(), answer.size.tolist())
        assert [by_sample[sample] for sample in rows.column("sample").to_pylist()] == list(got), f"step {step}"
    assert pool.stats().rows == whole.stats().rows == sum(map(len, batches))
    assert sum((answer.size > 0).sum() for answer in expected) > 200
    np.testing.assert_allclose(answer.moments.scatter, expected[-1].moments.scatter, rtol=1e-9)
    remove_placement_group(group)
