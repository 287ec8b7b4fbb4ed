"""A writer that is killed at any call and any instant, hundreds of times, against a model in memory."""

import functools
import os
import random
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.memory.streams import stream
from tests.memory.test_shard import crash
from tests.memory.written import answered, make_shard

STEPS = 60
CHECKPOINT = 5  # steps


def die_at_a_call(generator: random.Random, _whole_log: float) -> None:
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


def die_at_an_instant(generator: random.Random, whole_log: float) -> None:
    """After some of the CPU time that a whole log takes: on a slow or busy machine as far along as on any other."""
    signal.setitimer(signal.ITIMER_PROF, generator.uniform(0.02, 1.0) * whole_log)
    signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGKILL))


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
@pytest.mark.parametrize(("rounds", "whole_logs"), [(12, 0), pytest.param(100, 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", [die_at_a_call, die_at_an_instant])
def test_what_was_acknowledged_is_there_once_and_right(
    tmp_path: Path, way: Callable[[random.Random, float], None], rounds: int, whole_logs: int
) -> None:
    batches = stream(STEPS, seed=3)
    for name in ("first", "model"):  # code is compiled in the first
        model = make_shard(tmp_path / name)
        started = time.process_time()
        expected = [answered(model.observe(step, rows)) for step, rows in enumerate(batches, 1)]
        whole_log = time.process_time() - started
    rows_until = np.cumsum([0, *map(len, batches)]).tolist()
    generator = random.Random(way.__name__)
    root, acknowledged, number = tmp_path / "0", 0, 0
    for _ in range(rounds):
        deadly = functools.partial(way, random.Random(generator.random()), whole_log)
        acknowledged = run_until_killed(root, batches, acknowledged + 1, deadly)
        shard = make_shard(root)
        assert shard.stats().rows in rows_until[acknowledged : acknowledged + 2]  # one step may be there unheard of
        for step in {acknowledged, generator.randrange(1, acknowledged + 1)} if acknowledged else ():
            assert answered(shard.observe(step, batches[step - 1])) == expected[step - 1]
        assert shard.stats().rows in rows_until[acknowledged : acknowledged + 2]
        crash(shard)
        if acknowledged >= STEPS - 1:
            number, acknowledged = number + 1, 0
            root = tmp_path / str(number)
    assert number >= whole_logs  # got to their end
