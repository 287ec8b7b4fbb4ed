"""The memory as the trainer sees it: shards behind Ray actors, each prompt always with the same one.

observe(step, rows) ──► shard 0 ┐            answers come back at once; then, while the policy trains,
                    ──► shard 1 ├─► answer   recluster() runs on every shard, and the next observe
                    ──► shard 2 ┘            waits for it (normally it is long over)
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray

from meds_openrlhf.memory.moments import Moments, merge_moments
from meds_openrlhf.memory.shard import MemoryShard, ShardAnswer, ShardSettings, ShardStats
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot, read_snapshot
from meds_openrlhf.paths import MemoryPaths


@dataclass(frozen=True)
class PoolAnswer:
    """Per row handed to `observe`, in its order: label (-1 noise) and cluster size (n,); and what the memory holds."""

    label: NDArray[np.int32]
    size: NDArray[np.int32]
    stats: ShardStats
    moments: Moments
    wait_seconds: float
    assign_seconds: float
    append_seconds: float
    cluster_seconds: float


def prompt_key(prompt: str) -> str:
    """The 128-bit hash of a prompt's text, as 32 hexadecimal digits: its key where the data set names none."""
    return hashlib.blake2b(prompt.encode(), digest_size=16).hexdigest()


def shard_of(key: str, shards: int) -> int:
    """The shard that a prompt's key belongs to, the same in every process and run."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % shards


def start_shards(
    paths: MemoryPaths, memory_format: MemoryFormat, settings: ShardSettings, options: list[Any]
) -> list[Any]:
    """Start one Ray actor per shard; ``options[i]`` are Ray's actor options of shard i (where it sits).

    A shard that dies is started again by Ray, reads its log, and answers the call that was under way.
    """
    actor = ray.remote(max_restarts=-1, max_task_retries=-1)(MemoryShard)
    return [
        actor.options(**options[index]).remote(paths.shard(index), settings) for index in range(memory_format.shards)
    ]


class MemoryPool:
    """All shards as one memory. Made where the trainer runs; ``shards`` are handles from `start_shards`."""

    def __init__(self, shards: list[Any], root: Path, memory_format: MemoryFormat, config_hash: str = "") -> None:
        self._shards = shards
        self._paths = MemoryPaths(root)
        self._format = memory_format
        self._config_hash = config_hash
        self._reclustering: list[Any] = []

    def observe(self, step: int, rows: pa.RecordBatch) -> PoolAnswer:
        """Label and store one step's rows (`memory.rows.make_rows`); durable when this returns.

        Labels come from what was known before this step. Raises OSError or ValueError as a shard raised it.
        """
        wait_seconds, cluster_seconds = self._settle()
        keys = rows.column("prompt").to_pylist()
        owner = np.array([shard_of(key, len(self._shards)) for key in keys], dtype=np.int64)
        indices = [np.flatnonzero(owner == shard) for shard in range(len(self._shards))]
        answers: list[ShardAnswer] = _get(
            [shard.observe.remote(step, rows.take(pa.array(chosen))) for shard, chosen in zip(self._shards, indices)]
        )
        self._reclustering = [shard.recluster.remote() for shard in self._shards]
        label, size = np.full(len(rows), -1, np.int32), np.zeros(len(rows), np.int32)
        for chosen, answer in zip(indices, answers):
            label[chosen], size[chosen] = _in_order_of(rows, chosen, answer)
        return PoolAnswer(
            label=label,
            size=size,
            stats=add_stats([answer.stats for answer in answers]),
            moments=merge_moments([answer.moments for answer in answers]),
            wait_seconds=wait_seconds,
            assign_seconds=max(answer.assign_seconds for answer in answers),
            append_seconds=max(answer.append_seconds for answer in answers),
            cluster_seconds=cluster_seconds,
        )

    def snapshot(self, name: str) -> None:
        """Commit a snapshot of everything stored so far; whole or not at all."""
        states = _get([shard.snapshot.remote() for shard in self._shards])
        commit_snapshot(self._paths, name, Snapshot(self._format, self._config_hash, states))

    def restore(self, name: str | None) -> ShardStats:
        """Go back to the snapshot ``name``, or to an empty memory; rows stored later are cut away.

        Raises MemoryCorruptionError where the files are not what the snapshot says.
        """
        self._settle()
        shards = read_snapshot(self._paths, name).shards if name else [[] for _ in self._shards]
        stats = _get([shard.restore.remote(segments) for shard, segments in zip(self._shards, shards, strict=True)])
        self._reclustering = [shard.recluster.remote() for shard in self._shards]
        return add_stats(stats)

    def prune_snapshots(self, keep: set[str]) -> None:
        """Remove manifests whose name is not in ``keep``: their checkpoints are gone."""
        for path in self._paths.snapshots.glob("*.json"):
            if path.stem not in keep:
                path.unlink()

    def stats(self) -> ShardStats:
        """What all shards hold together."""
        return add_stats(_get([shard.stats.remote() for shard in self._shards]))

    def moments(self) -> Moments:
        """Moments of all rows stored."""
        return merge_moments(_get([shard.moments.remote() for shard in self._shards]))

    def _settle(self) -> tuple[float, float]:
        """Wait for clusterings under way: the seconds waited, and the longest that a shard took."""
        started = time.perf_counter()
        durations = _get(self._reclustering)
        self._reclustering = []
        return time.perf_counter() - started, max(durations, default=0.0)


def add_stats(stats: list[ShardStats]) -> ShardStats:
    """Totals over shards."""
    return ShardStats(
        rows=sum(one.rows for one in stats),
        prompts=sum(one.prompts for one in stats),
        clusters=sum(one.clusters for one in stats),
        noise=sum(one.noise for one in stats),
        bytes=sum(one.bytes for one in stats),
    )


def _in_order_of(rows: pa.RecordBatch, chosen: NDArray[np.int64], answer: ShardAnswer) -> tuple[Any, Any]:
    """A shard's labels and sizes for ``rows[chosen]``, joined by the rollouts' indices, never by position.

    Raises ValueError where the shard holds the step with other rows: the same step was observed differently before.
    """
    place = {int(sample): position for position, sample in enumerate(answer.sample)}
    wanted = rows.column("sample").to_numpy()[chosen]
    if len(wanted) != len(place) or any(int(sample) not in place for sample in wanted):
        raise ValueError("step: its rows are stored already, and they are not these; a step is observed only once")
    positions = [place[int(sample)] for sample in wanted]
    return answer.label[positions], answer.size[positions]


def _get(references: list[Any]) -> list[Any]:
    """`ray.get`, raising the error that the actor raised, not Ray's wrapping of it."""
    try:
        results: list[Any] = ray.get(references)
        return results
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from None
