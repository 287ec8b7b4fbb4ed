"""The pool over real Ray actors: the same answers on any number of shards, after a death, after a restore."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray

from meds_openrlhf.memory.pool import MemoryPool, PoolAnswer, prompt_key, shard_of, start_shards
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat
from meds_openrlhf.paths import MemoryPaths
from tests.memory.streams import LAYERS, stream


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, ignore_reinit_error=False, address="local")
    yield
    ray.shutdown()


def make_pool(root: Path, shards: int) -> tuple[MemoryPool, list]:
    memory_format = MemoryFormat(shards=shards, layers=LAYERS, model={})
    options = [{"num_cpus": 0.1}] * shards
    handles = start_shards(MemoryPaths(root), memory_format, ShardSettings(layers=LAYERS), options)
    return MemoryPool(handles, root, memory_format), handles


def run(pool: MemoryPool, batches: list[pa.RecordBatch], first: int = 1) -> list[PoolAnswer]:
    return [pool.observe(step, rows) for step, rows in enumerate(batches, start=first)]


def answers_of(answers: list[PoolAnswer]) -> list[tuple[list[int], list[int]]]:
    return [(answer.label.tolist(), answer.size.tolist()) for answer in answers]


def test_the_number_of_shards_changes_nothing(tmp_path: Path) -> None:
    batches = stream(6)
    one, _ = make_pool(tmp_path / "one", 1)
    three, _ = make_pool(tmp_path / "three", 3)
    first, second = run(one, batches), run(three, batches)
    assert answers_of(first) == answers_of(second)
    assert sum((answer.size > 0).sum() for answer in first) > 10
    assert first[-1].stats.rows == second[-1].stats.rows == sum(map(len, batches))
    np.testing.assert_allclose(first[-1].moments.scatter, second[-1].moments.scatter, rtol=1e-9)
    assert one.stats().clusters == three.stats().clusters > 0


def test_a_shard_that_is_killed_comes_back_with_its_rows(tmp_path: Path) -> None:
    batches = stream(6)
    expected = answers_of(run(make_pool(tmp_path / "whole", 2)[0], batches))
    pool, handles = make_pool(tmp_path / "killed", 2)
    got = run(pool, batches[:3])
    for handle in handles:
        os.kill(ray.get(handle.__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)
    got += run(pool, batches[3:], first=4)
    assert answers_of(got) == expected


def test_restore_repeats_the_steps_after_the_snapshot(tmp_path: Path) -> None:
    batches = stream(6)
    pool, handles = make_pool(tmp_path, 2)
    before = run(pool, batches[:3])
    pool.snapshot("global_step3")
    after = run(pool, batches[3:], first=4)
    for handle in handles:
        ray.kill(handle)
    resumed, _ = make_pool(tmp_path, 2)
    assert resumed.restore("global_step3").rows == before[-1].stats.rows
    assert answers_of(run(resumed, batches[3:], first=4)) == answers_of(after)
    assert resumed.stats().rows == sum(map(len, batches))


def test_restore_to_nothing_then_prune(tmp_path: Path) -> None:
    pool, _ = make_pool(tmp_path, 2)
    run(pool, stream(2))
    for name in ("global_step1", "global_step2"):
        pool.snapshot(name)
    pool.prune_snapshots({"global_step2"})
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["global_step2.json"]
    assert pool.restore(None).rows == 0
    assert not list(tmp_path.glob("shard-*/*.arrow"))


def test_other_rows_for_a_step_that_is_stored_are_refused(tmp_path: Path) -> None:
    pool, _ = make_pool(tmp_path, 1)
    rows = stream(1)[0]
    pool.observe(1, rows)
    with pytest.raises(ValueError, match="a step is observed only once"):
        pool.observe(1, rows.slice(2))


def test_answers_are_in_the_order_of_the_rows_handed_in(tmp_path: Path) -> None:
    batches = stream(4)
    shuffled = batches[3].take(pa.array(np.random.default_rng(7).permutation(len(batches[3]))))
    ordered, mixed = make_pool(tmp_path / "a", 3)[0], make_pool(tmp_path / "b", 3)[0]
    run(ordered, batches[:3])
    run(mixed, batches[:3])
    expected = ordered.observe(4, batches[3])
    got = mixed.observe(4, shuffled)
    by_sample = dict(zip(batches[3].column("sample").to_pylist(), expected.size.tolist()))
    assert [by_sample[sample] for sample in shuffled.column("sample").to_pylist()] == got.size.tolist()


def test_keys_and_routing_are_the_same_everywhere() -> None:
    assert prompt_key("What is 1 + 1?") == "3b79aa0bbae7d002ee48ddc253f3f71b"
    assert [shard_of(key, 4) for key in "abcd"] == [3, 1, 3, 3]
