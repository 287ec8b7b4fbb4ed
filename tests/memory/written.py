"""Streams of recorded features, and memories on the disk: written by real shards, with restarts and snapshots."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from meds_openrlhf.memory.log import LogState
from meds_openrlhf.memory.rows import Sharding, make_rows, owners_of
from meds_openrlhf.memory.shard import MemoryAnswer, MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot, read_snapshot, write_format
from meds_openrlhf.memory.successes import Visit, counts_of_shards
from meds_openrlhf.paths import MemoryPaths

LAYERS = 8
SETTINGS = ShardSettings(layers=LAYERS)
FORMAT = MemoryFormat(1, LAYERS, {"architecture": "Test", "layers": LAYERS})


def stream(steps: int, prompts: int = 6, per_step: int = 4, rollouts: int = 6, seed: int = 0) -> list[pa.RecordBatch]:
    """``steps`` batches of prompts that come back with errors of a few kinds.

    Each visits ``per_step`` of ``prompts`` with up to ``rollouts`` wrong ones, many repeated.
    """
    generator = np.random.default_rng(seed)
    modes = generator.normal(size=(prompts, 3, LAYERS)) * 4
    batches = []
    for step in range(steps):
        sample: list[int] = []
        keys: list[str] = []
        logits: list[np.ndarray] = []
        for slot in range(per_step):
            prompt = (step * per_step + slot) % prompts
            for rollout in range(rollouts):
                if generator.random() < 0.2:
                    continue  # a right answer: no row
                scatter = 0.0 if generator.random() < 0.4 else 0.2  # word-for-word repeats are common
                mode = modes[prompt, generator.integers(3)]
                sample.append(slot * rollouts + rollout)
                keys.append(f"prompt-{prompt}")
                logits.append(mode + scatter * generator.normal(size=LAYERS))
        batches.append(make_rows(sample, keys, [False] * len(sample), np.array(logits, dtype=np.float32)))
    return batches


def counts_of(rows: pa.RecordBatch) -> dict[str, tuple[int, int]]:
    """Six responses to each prompt of a step, those without a row right, and a solved prompt that was dropped."""
    prompts = Counter(rows.column("prompt").to_pylist())
    wrong = {f"solved-{len(rows) % 4}": 0, **{prompt: min(count, 6) for prompt, count in prompts.items()}}
    return {prompt: (6 - count, 6) for prompt, count in wrong.items()}


def make_shard(root: Path, settings: ShardSettings = SETTINGS, shard: int = 0, shards: int = 1) -> MemoryShard:
    return MemoryShard(MemoryPaths(root), Sharding(shard, shards), settings)


def run(memory: Any, batches: list[pa.RecordBatch], first: int = 1) -> list[MemoryAnswer]:
    """The answers to steps from ``first`` on, of a pool or of a shard, which then clusters at once."""
    answers = []
    for step, rows in enumerate(batches, start=first):
        answers.append(memory.observe(step, rows, counts_of(rows)))
        if isinstance(memory, MemoryShard):
            memory.recluster()
    return answers


Answered = tuple[list[tuple[int, int, int]], list[tuple[str, Visit]]]


def answered(*parts: MemoryAnswer) -> Answered:
    """Sample, label and size of every row of a step, by sample, and its visits, whichever shard has them."""
    rows = (row for part in parts for row in zip(part.sample.tolist(), part.label.tolist(), part.size.tolist()))
    return sorted(rows), sorted(visit for part in parts for visit in part.visits.items())


def answered_by_one(root: Path, batches: list[pa.RecordBatch]) -> list[Answered]:
    """What one shard that is never interrupted answers to each step."""
    return [answered(answer) for answer in run(make_shard(root), batches)]


@dataclass
class WrittenMemory:
    """All shards of a memory, driven as the pool does it."""

    root: Path
    shards: int = 2
    settings: ShardSettings = SETTINGS
    step: int = 0
    open: list[MemoryShard] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paths = MemoryPaths(self.root)
        self.format = replace(FORMAT, shards=self.shards, layers=self.settings.layers)
        write_format(self.paths, self.format)
        self.start()

    def start(self) -> None:
        """A restart."""
        self.stop()
        self.open = [make_shard(self.root, self.settings, number, self.shards) for number in range(self.shards)]

    def stop(self) -> None:
        for shard in self.open:
            shard.close()
        self.open = []

    def observe(self, *batches: pa.RecordBatch) -> list[Answered]:
        """What all shards answer to each step."""
        answers = []
        for rows in batches:
            self.step += 1
            owners = owners_of(rows, self.shards)
            counts = counts_of_shards(counts_of(rows), self.shards)
            parts = []
            for number, shard in enumerate(self.open):
                parts.append(shard.observe(self.step, rows.filter(pa.array(owners == number)), counts[number]))
                shard.recluster()
            answers.append(answered(*parts))
        return answers

    def snapshot(self) -> None:
        """Commit the snapshot of a checkpoint of the last step."""
        state = LogState.of_shards([shard.snapshot() for shard in self.open])
        commit_snapshot(self.paths, f"global_step{self.step}", Snapshot(self.format, state))

    def restore(self, name: str) -> None:
        """Go back to a snapshot."""
        state = read_snapshot(self.paths.snapshot(name)).state
        for shard in self.open:
            shard.restore(state)
        self.step = max(state.step, 0)


def files_of(root: Path, shard: int = 0) -> list[Path]:
    return sorted((root / f"shard-{shard:04d}").glob("*.arrow"))
