"""The memory as the trainer sees it: shards in Ray actors on the driver's node; each prompt belongs to one shard.

observe(step, rows) ──► shard 0 ┐            shards answer at once; then, while the policy trains,
                    ──► shard 1 ├─► answer   recluster() runs on every shard, concurrently with
                    ──► shard 2 ┘            the next calls
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray
from ray.util.metrics import Gauge

from meds_openrlhf.features.moments import merge_moments
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.log import LogState
from meds_openrlhf.memory.rows import Sharding, owners_of
from meds_openrlhf.memory.sets import UNASSIGNED
from meds_openrlhf.memory.shard import NO_TIME, MemoryAnswer, MemoryShard, ShardSettings, ShardStats
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot, read_snapshot
from meds_openrlhf.memory.successes import NO_COUNTS, Counts, counts_of_shards
from meds_openrlhf.paths import MemoryPaths

CLUSTERING = "clustering"  # the concurrency group (one thread of the actor) in which `recluster` runs
# Prometheus gauges of each shard, with the labels ``run`` and ``shard``, which Ray exports from the pool's process.
GAUGES = {
    "meds_memory_rows": "Rows that a shard of the memory holds.",
    "meds_memory_prompts": "Prompts that have rows.",
    "meds_memory_bytes": "Bytes of its Arrow files.",
    "meds_memory_stale": "Prompts (of one verdict) that wait to be clustered.",
    "meds_memory_wait_seconds": "Seconds that the last step waited for unfinished clusterings.",
    "meds_memory_assign_seconds": "Seconds to label the last step's rows.",
    "meds_memory_append_seconds": "Seconds to make the last step's rows durable.",
    "meds_memory_cluster_seconds": "Seconds of the last finished clustering.",
}


def start_shards(
    paths: MemoryPaths, memory_format: MemoryFormat, settings: ShardSettings, options: list[Any]
) -> list[Any]:
    """Start one Ray actor per shard; ``options[i]`` are the Ray actor options of shard i, such as its placement.

    If a shard dies, Ray restarts it; the shard opens its log and answers the interrupted call.
    """
    actor = ray.remote(max_restarts=-1, max_task_retries=-1, concurrency_groups={CLUSTERING: 1})(MemoryShard)
    count = memory_format.shards
    return [actor.options(**options[index]).remote(paths, Sharding(index, count), settings) for index in range(count)]


class MemoryPool:
    """All shards as one memory, in the process of the trainer; ``shards`` are handles from `start_shards`."""

    def __init__(self, shards: list[Any], root: Path, memory_format: MemoryFormat) -> None:
        self._shards = shards
        self._paths = MemoryPaths(root)
        self._format = memory_format
        self._reclustering: list[Any] = [None] * len(shards)
        self._cluster_seconds = 0.0
        self._run = root.absolute().parent.name
        self._gauges = {name: Gauge(name, description=text, tag_keys=("run", "shard")) for name, text in GAUGES.items()}

    def observe(self, step: int, rows: pa.RecordBatch, counts: Counts = NO_COUNTS) -> MemoryAnswer:
        """Label and store one step's rows (`memory.rows.make_rows`) and counts; they are durable when this returns.

        The answer is in the order of ``rows``; each of its times is the maximum over shards. Labels depend only on rows
        stored before this step. Raises the OSError, ValueError or MemoryCorruptionError of a shard.
        """
        owner = owners_of(rows, len(self._shards))
        indices = [np.flatnonzero(owner == shard) for shard in range(len(self._shards))]
        parts = [rows.take(pa.array(chosen)) for chosen in indices]
        asked = zip(self._shards, parts, counts_of_shards(counts, len(self._shards)))
        answers = _get([shard.observe.remote(step, *of_shard) for shard, *of_shard in asked])
        for number, answer in enumerate(answers):
            for name in ("rows", "prompts", "bytes", "stale"):
                self._set_gauge(number, name, getattr(answer.stats, name))
            for part, took in answer.seconds.items():
                self._set_gauge(number, f"{part}_seconds", took)
        self._recluster()
        label, size = np.full(len(rows), UNASSIGNED, np.int32), np.zeros(len(rows), np.int32)
        for chosen, answer in zip(indices, answers):
            label[chosen], size[chosen] = _in_order_of(rows, chosen, answer)
        stats = add_stats([answer.stats for answer in answers])
        moments = merge_moments([answer.moments for answer in answers])
        slowest = {part: max(answer.seconds[part] for answer in answers) for part in NO_TIME}
        seconds = {**slowest, "cluster": self._cluster_seconds}
        visits = {prompt: visit for answer in answers for prompt, visit in answer.visits.items()}
        return MemoryAnswer(rows.column("sample").to_numpy(), label, size, stats, moments, seconds, visits)

    def snapshot(self, name: str) -> None:
        """Atomically commit a snapshot of all that is stored."""
        state = LogState.of_shards(_get([shard.snapshot.remote() for shard in self._shards]))
        commit_snapshot(self._paths, name, Snapshot(self._format, state))

    def restore(self, name: str | None) -> ShardStats:
        """Go back to the snapshot ``name``, or to no rows. Raises MemoryCorruptionError if files differ from it."""
        state = LogState(-1, {})
        if name is not None:
            snapshot = read_snapshot(self._paths.snapshot(name))
            snapshot.format.require_match(self._format, self._paths.root)
            state = snapshot.state
        _get([shard.restore.remote(state) for shard in self._shards])
        total = self.stats()
        for what, held, wanted in (("rows", total.rows, state.rows), ("visits", total.visits, state.visits)):
            if held != (all_of_them := sum(wanted.values())):  # the others are in a folder that no shard reads
                text = f"holds {held} of the {all_of_them} {what} of its snapshot"
                raise MemoryCorruptionError(f"{self._paths.root}: {text}")
        self._recluster()
        return total

    def prune_snapshots(self, keep: set[str]) -> None:
        """Remove snapshots whose name is not in ``keep``, since their checkpoints no longer exist."""
        for path in self._paths.manifests():
            if path.stem not in keep:
                path.unlink()

    def stats(self) -> ShardStats:
        """Return the statistics of all shards together."""
        return add_stats(_get([shard.stats.remote() for shard in self._shards]))

    def _recluster(self) -> None:
        """Start `recluster` on every shard that is not running it; a running call also picks up newer rows."""
        running = {call: number for number, call in enumerate(self._reclustering) if call is not None}
        done, _ = ray.wait(list(running), num_returns=len(running), timeout=0) if running else ([], [])
        seconds = _get(done)
        for call, took in zip(done, seconds):
            self._reclustering[running[call]] = None
            self._set_gauge(running[call], "cluster_seconds", took)
        self._cluster_seconds = max(seconds, default=self._cluster_seconds)
        for number, shard in enumerate(self._shards):
            if self._reclustering[number] is None:
                self._reclustering[number] = shard.recluster.options(concurrency_group=CLUSTERING).remote()

    def _set_gauge(self, shard: int, name: str, value: float) -> None:
        self._gauges[f"meds_memory_{name}"].set(value, tags={"run": self._run, "shard": str(shard)})


def add_stats(stats: list[ShardStats]) -> ShardStats:
    """Return the totals over shards."""
    return ShardStats(*map(sum, zip(*map(astuple, stats))))


def _in_order_of(rows: pa.RecordBatch, chosen: NDArray[np.int64], answer: MemoryAnswer) -> tuple[Any, Any]:
    """Return a shard's labels and sizes for ``rows[chosen]``, joined by the rollouts' indices, never by position."""
    wanted = rows.column("sample").to_numpy()[chosen]
    order, wanted_order = np.argsort(answer.sample), np.argsort(wanted)
    positions = order[np.argsort(wanted_order)]
    return answer.label[positions], answer.size[positions]


def _get(references: list[Any]) -> list[Any]:
    """Like `ray.get`, but raise the actor's original error instead of Ray's wrapper."""
    try:
        return list(ray.get(references))
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from None
