"""A writer that is killed at every call that makes rows durable, and at every removal of a merged file."""

import itertools
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from meds_openrlhf.memory.log import LogState
from tests.memory.streams import stream
from tests.memory.written import answered, answered_by_one, make_shard

STEPS, CHECKPOINT = 6, 4


def die_at(call: int) -> None:
    """Kill this process before one of its calls; if that is the sync of a file, with a half of the bytes written."""
    calls = itertools.count(1)

    def deadly(real: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            if next(calls) < call:
                return real(*arguments, **options)
            if real is fsync and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
                os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        return called

    fsync = os.fsync
    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))


def run_until_killed(root: Path, batches: list[pa.RecordBatch], call: int) -> int:
    """Some steps and a checkpoint in a process of its own that dies at its ``call``; the last acknowledged step."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        shard = make_shard(root)
        die_at(call)
        for step in range(1, STEPS + 1):
            shard.observe(step, batches[step - 1])
            os.write(writable, b".")
            if step == CHECKPOINT:
                shard.snapshot()
        os._exit(0)
    os.close(writable)
    os.waitpid(child, 0)
    acknowledged = len(os.read(readable, 100))
    os.close(readable)
    return acknowledged


def test_what_was_acknowledged_is_there_once_and_right(tmp_path: Path) -> None:
    batches = stream(8, seed=3)
    expected = answered_by_one(tmp_path / "model", batches)
    rows_until = np.cumsum([0, *map(len, batches)]).tolist()
    acknowledged, call = 0, 0
    while acknowledged < STEPS:
        call += 1
        root = tmp_path / str(call)
        acknowledged = run_until_killed(root, batches, call)
        shard = make_shard(root)
        assert shard.stats().rows in rows_until[acknowledged : acknowledged + 2]  # one step may be there unheard of
        if acknowledged:
            assert answered(shard.observe(acknowledged, batches[acknowledged - 1])) == expected[acknowledged - 1]
        first = min(acknowledged, 2)  # back into what a merge may have been interrupted in
        shard.restore(LogState(first, {"shard-0000": rows_until[first]}))
        for step in range(first + 1, 9):
            assert answered(shard.observe(step, batches[step - 1])) == expected[step - 1]
        assert shard.stats().rows == rows_until[8]
        shard.close()
    assert call > 20
