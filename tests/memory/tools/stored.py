"""Memories on the disk for the tests of what reads them: written by real shards, with restarts and snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from meds_openrlhf.memory.rows import shard_of
from meds_openrlhf.memory.segment import SegmentState, Sharding
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot, write_format
from meds_openrlhf.paths import MemoryPaths
from tests.memory.streams import LAYERS

SETTINGS = ShardSettings(layers=LAYERS, fsync=False)


@dataclass
class WrittenMemory:
    """All shards of a memory, driven as the pool does it."""

    root: Path
    shards: int = 2
    settings: ShardSettings = SETTINGS
    step: int = 0
    open: list[MemoryShard] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.format = MemoryFormat(self.shards, self.settings.layers, {"architecture": "Test", "layers": LAYERS})
        write_format(self.paths, self.format)
        self.start()

    @property
    def paths(self) -> MemoryPaths:
        return MemoryPaths(self.root)

    def start(self, shards: int | None = None) -> None:
        """A restart: new segments begin. With another number of shards a snapshot is restored."""
        states = self.states()
        self.stop()
        divided_anew, self.shards = shards not in (None, self.shards), shards or self.shards
        self.open = [MemoryShard(self.paths, Sharding(i, self.shards), self.settings) for i in range(self.shards)]
        if divided_anew:
            self.restore(states)

    def stop(self) -> None:
        for shard in self.open:
            shard.close()
        self.open = []

    def observe(self, *batches: pa.RecordBatch) -> None:
        for rows in batches:
            self.step += 1
            for number, shard in enumerate(self.open):
                own = [shard_of(key, self.shards) == number for key in rows.column("prompt").to_pylist()]
                shard.observe(self.step, rows.filter(pa.array(own)))
                shard.recluster()

    def states(self) -> list[SegmentState]:
        return sorted({s.name: s for one in self.open for s in one.snapshot()}.values(), key=lambda s: s.name)

    def snapshot(self, name: str) -> None:
        commit_snapshot(self.paths, name, Snapshot(replace(self.format, shards=self.shards), "hash", self.states()))

    def restore(self, states: list[SegmentState]) -> None:
        for shard in self.open:
            shard.restore(states)


def file_of(root: Path, number: int = 0, shard: int = 0) -> Path:
    return root / f"shard-{shard:04d}" / f"{number:06d}.arrow"


def flip(path: Path, position: int) -> None:
    """Damage one byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(content)
