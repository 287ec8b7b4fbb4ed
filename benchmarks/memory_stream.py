"""What the memory's benchmark stores and asks: a stream of rollouts, and a shard of a memory that lives on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing_table import timed
from meds_openrlhf.memory.rows import Sharding, make_rows
from meds_openrlhf.memory.shard import MemoryAnswer, MemoryShard, ShardSettings
from meds_openrlhf.paths import MemoryPaths

LAYERS, MODES, ROWS = 28, 5, 8  # ROWS: of a prompt in one visit
REPEATED = 0.4  # of the rows


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is stored and asked; ``stored`` rows per prompt, and the one of them that has bounds."""

    per_step: int = 512
    stored: tuple[int, ...] = (16, 64, 160, 400)
    bounded: int = 160
    snapshot_prompts: int = 25_000  # with 16 rows each
    restart_prompts: int = 62_500  # with 16 rows each
    small: int = 10_000  # with 8 rows each, as the next
    large: int = 1_000_000


QUICK = Sizes(per_step=8, stored=(16,), bounded=16, snapshot_prompts=32, restart_prompts=32, small=64, large=128)


def key(prompt: int) -> str:
    """A key as a hashed prompt has it."""
    return f"{prompt:032x}"


class Memory:
    """One shard below ``folder`` and the stream that it gets: the same seed gives the same rows."""

    def __init__(self, folder: Path, seed: int = 0, shard: int = 0, shards: int = 1, step: int = 0) -> None:
        self.paths = MemoryPaths(folder)
        self.shard = MemoryShard(self.paths, Sharding(shard, shards), ShardSettings(layers=LAYERS))
        self._modes = np.random.default_rng(0).normal(scale=4, size=(512, MODES, LAYERS))  # of prompts modulo 512
        self._generator = np.random.default_rng(seed)
        self._step = step

    def rows(self, prompts: NDArray[np.int64]) -> NDArray[np.float32]:
        """Layer logits (p, 8, N) of one visit of ``prompts`` (p,)."""
        shape = (len(prompts), ROWS)
        modes = self._modes[prompts[:, None] % len(self._modes), self._generator.integers(MODES, size=shape)]
        scatter = 0.3 * (self._generator.random(shape) > REPEATED)
        return (modes + scatter[..., None] * self._generator.normal(size=modes.shape)).astype(np.float32)

    def observe(self, prompts: NDArray[np.int64], logits: NDArray[np.float32]) -> tuple[float, MemoryAnswer]:
        """The next step: ``logits`` (p, 8, N) of ``prompts`` (p,). Making the Arrow batch is not in the seconds."""
        self._step += 1
        keys = [key(prompt) for prompt in prompts.tolist() for _ in range(ROWS)]
        batch = make_rows(np.arange(len(keys)), keys, np.zeros(len(keys), bool), logits.reshape(-1, LAYERS))
        return timed(self.shard.observe, self._step, batch)

    def fill(self, prompts: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
        """Visit ``prompts`` (p,) in steps of their own until each has so many ``rows``: (p, rows, N)."""
        visits = [self.rows(prompts) for _ in range(rows // ROWS)]
        for logits in visits:
            self.observe(prompts, logits)
            self.shard.recluster()
        return np.concatenate(visits, axis=1)


def in_steps(prompts: int, per_step: int) -> list[NDArray[np.int64]]:
    """The numbers below ``prompts``, so many at a time."""
    return np.split(np.arange(prompts), range(per_step, prompts, per_step))


def in_random_steps(prompts: int, per_step: int) -> NDArray[np.int64]:
    """The same (steps, per_step) in random order, none twice; the rest that makes no whole step is left out."""
    order = np.random.default_rng(1).permutation(prompts)
    return order[: prompts // per_step * per_step].reshape(-1, per_step)
