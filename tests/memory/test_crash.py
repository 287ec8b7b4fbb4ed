"""A writer that is killed at any call that makes rows durable, many times, against one that never is."""

import functools
import os
import random
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.memory.streams import stream
from tests.memory.test_shard import crash
from tests.memory.written import answered, answered_by_one, make_shard

STEPS = 60
CHECKPOINT = 5  # steps


def die_at_a_call(generator: random.Random) -> None:
    """At one of the calls that make a file durable, before or after it; in a sync with a part of the bytes."""
    left = [generator.randrange(1, 30)]

    def deadly(real: Callable[..., object], *arguments: Any, **options: object) -> object:
        left[0] -= 1
        if left[0] > 0:
            return real(*arguments, **options)
        if real is fsync and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
            os.ftruncate(arguments[0], generator.randrange(os.fstat(arguments[0]).st_size + 1))
        elif generator.random() < 0.5:
            real(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    fsync = os.fsync
    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, functools.partial(deadly, getattr(os, name)))


def run_until_killed(root: Path, batches: list[pa.RecordBatch], first: int, kill: Callable[[], None]) -> int:
    """Steps from ``first`` on in a process of its own that dies; the last step that it acknowledged."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        shard = make_shard(root)
        kill()
        for step in range(first, STEPS + 1):
            shard.observe(step, batches[step - 1])
            os.write(writable, bytes([step]))
            if step % CHECKPOINT == 0:
                shard.snapshot()
        os._exit(0)
    os.close(writable)
    acknowledged = first - 1
    while content := os.read(readable, 1):
        acknowledged = content[0]
    os.close(readable)
    os.waitpid(child, 0)
    return acknowledged


@pytest.mark.timeout(110)
@pytest.mark.parametrize("rounds", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_what_was_acknowledged_is_there_once_and_right(tmp_path: Path, rounds: int) -> None:
    batches = stream(STEPS, seed=3)
    expected = answered_by_one(tmp_path / "model", batches)
    rows_until = np.cumsum([0, *map(len, batches)]).tolist()
    generator = random.Random(1)
    root, acknowledged, whole_logs = tmp_path / "0", 0, 0
    for _ in range(rounds):
        deadly = functools.partial(die_at_a_call, random.Random(generator.random()))
        acknowledged = run_until_killed(root, batches, acknowledged + 1, deadly)
        shard = make_shard(root)
        assert shard.stats().rows in rows_until[acknowledged : acknowledged + 2]  # one step may be there unheard of
        for step in {acknowledged, generator.randrange(1, acknowledged + 1)} if acknowledged else ():
            assert answered(shard.observe(step, batches[step - 1])) == expected[step - 1]
        assert shard.stats().rows in rows_until[acknowledged : acknowledged + 2]
        crash(shard)
        if acknowledged >= STEPS - 1:
            whole_logs, acknowledged = whole_logs + 1, 0
            root = tmp_path / str(whole_logs)
    assert whole_logs >= rounds // 50  # got to their end
