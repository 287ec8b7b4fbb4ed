"""The memory as the trainer sees it: shards in Ray actors; each prompt always belongs to the same shard.

observe(step, rows) ──► shard 0 ┐            shards answer at once; then, while the policy trains,
                    ──► shard 1 ├─► answer   recluster() runs on every shard, concurrently with
                    ──► shard 2 ┘            the next calls
"""

from __future__ import annotations

import logging
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray
from ray.util.metrics import Gauge

from meds_openrlhf.memory.archive import Archive
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.errors import MemoryLostError
from meds_openrlhf.memory.moments import merge_moments
from meds_openrlhf.memory.rows import shard_of
from meds_openrlhf.memory.segment import Sharding
from meds_openrlhf.memory.shard import MemoryAnswer, MemoryShard, ShardSettings, ShardStats
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot, read_snapshot
from meds_openrlhf.paths import MemoryPaths

logger = logging.getLogger(__name__)

CLUSTERING = "clustering"  # the concurrency group (one thread of the actor) in which `recluster` runs
PATIENCE_SECONDS = 60.0  # time without an answer from a shard after which a warning is logged


# Prometheus gauges of each shard, with the labels ``run`` and ``shard``, which Ray exports from the pool's process.
GAUGES = {
    "meds_memory_rows": "Rows that a shard of the memory holds.",
    "meds_memory_prompts": "Prompts that have rows.",
    "meds_memory_bytes": "Bytes of its Arrow files.",
    "meds_memory_owed_prompts": "Prompts (of one verdict) that wait to be clustered.",
    "meds_memory_wait_seconds": "How long the last step waited for clusterings that should have been over.",
    "meds_memory_assign_seconds": "Labelling the last step's rows.",
    "meds_memory_append_seconds": "Making the last step's rows durable.",
    "meds_memory_cluster_seconds": "The last clustering that has ended.",
}


def start_shards(
    paths: MemoryPaths, memory_format: MemoryFormat, settings: ShardSettings, options: list[Any]
) -> list[Any]:
    """Start one Ray actor per shard; ``options[i]`` are the Ray actor options of shard i, such as its placement.

    If a shard dies, Ray restarts it where its bundle is scheduled; the shard opens its log and answers the interrupted
    call.
    """
    actor = ray.remote(max_restarts=-1, max_task_retries=-1, concurrency_groups={CLUSTERING: 1})(MemoryShard)
    count = memory_format.shards
    return [actor.options(**options[index]).remote(paths, Sharding(index, count), settings) for index in range(count)]


class MemoryPool:
    """All shards as one memory, in the process of the trainer; ``shards`` are handles from `start_shards`."""

    def __init__(
        self,
        shards: list[Any],
        root: Path,
        memory_format: MemoryFormat,
        config_hash: str = "",
        archive_uri: str | None = None,
    ) -> None:
        self._shards = shards
        self._paths = MemoryPaths(root)
        self._format = memory_format
        self._config_hash = config_hash
        self._archive_uri = archive_uri
        self._reclustering: list[Any] = [None] * len(shards)
        self._cluster_seconds = 0.0
        self._run = root.absolute().parent.name
        self._gauges: dict[str, Any] = {
            name: Gauge(name, description=text, tag_keys=("run", "shard")) for name, text in GAUGES.items()
        }
        self._acknowledged = [0] * len(shards)

    def observe(self, step: int, rows: pa.RecordBatch) -> MemoryAnswer:
        """Label and store one step's rows (`memory.rows.make_rows`); they are durable when this returns.

        The answer is in the order of ``rows``; each of its times is the maximum over shards. Labels depend only on rows
        stored before this step. Raises the OSError, ValueError, MemoryLostError or MemoryCorruptionError of a shard.
        """
        owner = _owners(rows, len(self._shards))
        indices = [np.flatnonzero(owner == shard) for shard in range(len(self._shards))]
        answers: list[MemoryAnswer] = _get(
            [
                shard.observe.remote(step + self._format.step_offset, rows.take(pa.array(chosen)), acknowledged)
                for shard, chosen, acknowledged in zip(self._shards, indices, self._acknowledged)
            ]
        )
        self._acknowledged = [answer.stats.rows for answer in answers]
        for number, answer in enumerate(answers):
            self._set_gauges(
                number,
                rows=answer.stats.rows,
                prompts=answer.stats.prompts,
                bytes=answer.stats.bytes,
                owed_prompts=answer.stats.owed,
                wait_seconds=answer.wait_seconds,
                assign_seconds=answer.assign_seconds,
                append_seconds=answer.append_seconds,
            )
        self._recluster()
        label, size = np.full(len(rows), UNASSIGNED, np.int32), np.zeros(len(rows), np.int32)
        for chosen, answer in zip(indices, answers):
            label[chosen], size[chosen] = _in_order_of(rows, chosen, answer)
        return MemoryAnswer(
            sample=rows.column("sample").to_numpy(),
            label=label,
            size=size,
            stats=add_stats([answer.stats for answer in answers]),
            moments=merge_moments([answer.moments for answer in answers]),
            wait_seconds=max(answer.wait_seconds for answer in answers),
            assign_seconds=max(answer.assign_seconds for answer in answers),
            append_seconds=max(answer.append_seconds for answer in answers),
            cluster_seconds=self._cluster_seconds,
        )

    def snapshot(self, name: str) -> None:
        """Atomically commit a snapshot of all stored rows, also to the archive if there is one."""
        if self._archive_uri is not None:
            _get([shard.archive.remote(self._archive_uri, rows) for shard, rows in self._with_acknowledged()])
        states = _get([shard.snapshot.remote(rows) for shard, rows in self._with_acknowledged()])
        segments = sorted({state for part in states for state in part}, key=lambda state: state.name)
        if len({state.name for state in segments}) < len(segments):
            raise MemoryLostError(
                f"{self._paths.root}: two segments have one name, since a shard began anew without its files; "
                "resume from the last checkpoint"
            )
        snapshot = Snapshot(self._format, self._config_hash, segments)
        if self._archive_uri is not None:
            Archive.at(self._archive_uri).commit(name, snapshot)
        commit_snapshot(self._paths, name, snapshot)

    def restore(self, name: str | None) -> ShardStats:
        """Restore the snapshot ``name``, or an empty memory if it is None; removes rows stored later.

        The snapshot may come from a run with another number of shards and, if there is an archive, from other nodes.
        Raises MemoryCorruptionError if files differ from the snapshot, and MemoryLostError if rows are unreachable.
        """
        snapshot = self._snapshot_of(name) if name else None
        if snapshot is not None:
            snapshot.format.require_match(self._format, self._paths.root)
        segments = snapshot.segments if snapshot else []
        _get([shard.restore.remote(segments, self._archive_uri) for shard in self._shards])
        stats: list[ShardStats] = _get([shard.stats.remote() for shard in self._shards])
        self._acknowledged = [part.rows for part in stats]
        total = add_stats(stats)
        if snapshot is not None and total.rows != snapshot.rows:
            raise MemoryLostError(
                f"{self._paths.root}: snapshot {name} has {snapshot.rows} rows, and the {len(self._shards)} shards "
                f"found {total.rows}; give all nodes the same disk, or set meds.memory.archive"
            )
        self._recluster()
        return total

    def prune_snapshots(self, keep: set[str]) -> None:
        """Remove snapshots whose name is not in ``keep``, since their checkpoints no longer exist."""
        for path in self._paths.snapshots.glob("*.json"):
            if path.stem not in keep:
                path.unlink()
        if self._archive_uri is not None:
            Archive.at(self._archive_uri).prune(keep)

    def has_snapshot(self, name: str) -> bool:
        """Return whether a snapshot called ``name`` exists on this machine or in the archive."""
        if self._paths.snapshot(name).exists():
            return True
        return self._archive_uri is not None and Archive.at(self._archive_uri).read(name) is not None

    def stats(self) -> ShardStats:
        """Return the statistics of all shards together."""
        return add_stats(_get([shard.stats.remote() for shard in self._shards]))

    def _with_acknowledged(self) -> list[tuple[Any, int]]:
        return list(zip(self._shards, self._acknowledged))

    def _recluster(self) -> None:
        """Start `recluster` on every shard that is not running it; a running call also picks up newer rows."""
        running = {call: number for number, call in enumerate(self._reclustering) if call is not None}
        done, _ = ray.wait(list(running), num_returns=len(running), timeout=0) if running else ([], [])
        seconds = _get(done)
        for call, took in zip(done, seconds):
            self._reclustering[running[call]] = None
            self._set_gauges(running[call], cluster_seconds=took)
        self._cluster_seconds = max(seconds, default=self._cluster_seconds)
        for number, shard in enumerate(self._shards):
            if self._reclustering[number] is None:
                self._reclustering[number] = shard.recluster.options(concurrency_group=CLUSTERING).remote()

    def _set_gauges(self, shard: int, **values: float) -> None:
        for name, value in values.items():
            self._gauges[f"meds_memory_{name}"].set(value, tags={"run": self._run, "shard": str(shard)})

    def _snapshot_of(self, name: str) -> Snapshot:
        # The archive first: the local snapshot of this name may contain steps that a run on another node has undone.
        archived = Archive.at(self._archive_uri).read(name) if self._archive_uri is not None else None
        return archived or read_snapshot(self._paths.snapshot(name))


def add_stats(stats: list[ShardStats]) -> ShardStats:
    """Return the totals over shards."""
    return ShardStats(*map(sum, zip(*map(astuple, stats))))


def _owners(rows: pa.RecordBatch, shards: int) -> NDArray[np.int64]:
    """Return the shard of every row; each prompt is hashed once."""
    keys = rows.column("prompt").dictionary_encode()
    owners = np.array([shard_of(key, shards) for key in keys.dictionary.to_pylist()], dtype=np.int64)
    return owners[keys.indices.to_numpy(zero_copy_only=False)] if len(rows) else owners


def _in_order_of(rows: pa.RecordBatch, chosen: NDArray[np.int64], answer: MemoryAnswer) -> tuple[Any, Any]:
    """Return a shard's labels and sizes for ``rows[chosen]``, joined by the rollouts' indices, never by position.

    Raises ValueError if the shard has stored this step with other rows.
    """
    wanted = rows.column("sample").to_numpy()[chosen]
    order, wanted_order = np.argsort(answer.sample), np.argsort(wanted)
    if not np.array_equal(answer.sample[order], wanted[wanted_order]):
        raise ValueError("step: its rows are stored already, and they are not these; a step is observed only once")
    positions = np.empty(len(wanted), dtype=np.int64)
    positions[wanted_order] = order
    return answer.label[positions], answer.size[positions]


def _get(references: list[Any]) -> list[Any]:
    """Like `ray.get`, but raise the actor's original error instead of Ray's wrapper, and warn about slow answers."""
    waiting = references
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=PATIENCE_SECONDS)
        if waiting:
            logger.warning("%d memory shards have not answered for %.0f s; waiting", len(waiting), PATIENCE_SECONDS)
    try:
        results: list[Any] = ray.get(references)
        return results
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from None
