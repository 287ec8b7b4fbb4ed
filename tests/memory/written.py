"""Memories on the disk for the tests of what reads them: written by real shards, with restarts and snapshots."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.memory.log import LogState
from meds_openrlhf.memory.rows import Sharding, owners_of
from meds_openrlhf.memory.shard import MemoryAnswer, MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot, write_format
from meds_openrlhf.paths import MemoryPaths
from tests.memory.streams import LAYERS

SETTINGS = ShardSettings(layers=LAYERS)


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
        self.format = MemoryFormat(self.shards, self.settings.layers, {"architecture": "Test", "layers": LAYERS})
        write_format(self.paths, self.format)
        self.start()

    def start(self) -> None:
        """A restart."""
        self.stop()
        self.open = [MemoryShard(self.paths, Sharding(i, self.shards), self.settings) for i in range(self.shards)]

    def stop(self) -> None:
        for shard in self.open:
            shard.close()
        self.open = []

    def observe(self, *batches: pa.RecordBatch) -> list[list[MemoryAnswer]]:
        """The answers of all shards to each step."""
        answers = []
        for rows in batches:
            self.step += 1
            owners = owners_of(rows, self.shards)
            own = [rows.filter(pa.array(owners == number)) for number in range(self.shards)]
            answers.append([shard.observe(self.step, of_shard) for shard, of_shard in zip(self.open, own)])
            for shard in self.open:
                shard.recluster()
        return answers

    def state(self) -> LogState:
        states = [shard.snapshot() for shard in self.open]
        rows = {folder: count for state in states for folder, count in state.rows.items()}
        return LogState(max(state.step for state in states), rows)

    def snapshot(self, name: str) -> None:
        commit_snapshot(self.paths, name, Snapshot(replace(self.format, shards=self.shards), "hash", self.state()))

    def restore(self, state: LogState) -> None:
        for shard in self.open:
            shard.restore(state)


def answers_of(answers: Sequence[Sequence[MemoryAnswer]]) -> list[list[tuple[int, int, int]]]:
    """Sample, label and size of every row of each step."""
    return [
        sorted(row for part in step for row in zip(part.sample.tolist(), part.label.tolist(), part.size.tolist()))
        for step in answers
    ]


def files_of(root: Path, shard: int = 0) -> list[Path]:
    return sorted((root / f"shard-{shard:04d}").glob("*.arrow"))


def flip(path: Path, position: int) -> None:
    """Damage one byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(content)
