"""One shard of the memory: a subset of the prompts and their rows. A plain class that does not depend on Ray.

The log on disk is authoritative and is read once; answers come from columns in RAM. `observe` answers and stores;
`recluster` may run in another thread at the same time. `recluster` does not affect answers, because `observe` clusters
the groups that it needs if they are still waiting.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.locks import WAIT_SECONDS
from meds_openrlhf.memory.archive import Archive
from meds_openrlhf.memory.assignment import assign_jointly, assign_sets, sizes_of
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.columns import Columns, Selection
from meds_openrlhf.memory.errors import MemoryLostError
from meds_openrlhf.memory.log import SEGMENT_BYTES, ShardLog
from meds_openrlhf.memory.moments import NO_MOMENTS, Moments
from meds_openrlhf.memory.presets import PRESETS, Method
from meds_openrlhf.memory.rows import (
    group_rows,
    incoming_schema,
    labels_of,
    layer_logits_of,
    log_schema,
    visits_of,
    with_answer,
)
from meds_openrlhf.memory.segment import SegmentState, Sharding, step_of
from meds_openrlhf.paths import MemoryPaths

logger = logging.getLogger(__name__)

GROUPS_AT_ONCE = 64  # clustered in one compiled call of some milliseconds, after which `observe` can run


@dataclass(frozen=True)
class ShardSettings:
    """How a shard computes features of rows, clusters them and stores them.

    ``forget_lost_rows``: continue with a warning if acknowledged rows are no longer reachable.
    """

    layers: int
    transform: FeatureTransform = field(default_factory=FeatureTransform)
    method: Method = field(default_factory=lambda: PRESETS["paper"])
    fsync: bool = True
    segment_bytes: int = SEGMENT_BYTES
    lock_seconds: float | None = WAIT_SECONDS
    forget_lost_rows: bool = False


@dataclass(frozen=True)
class ShardStats:
    """Contents of a shard; ``clusters`` and ``noise`` are as of the last clustering, ``bytes`` is the size of segments.

    ``owed``: groups (rows of one prompt and verdict) that wait to be clustered.
    """

    rows: int = 0
    prompts: int = 0
    clusters: int = 0
    noise: int = 0
    bytes: int = 0
    owed: int = 0


@dataclass(frozen=True)
class MemoryAnswer:
    """For each row (n,) the rollout's index, its label (-1 for noise, UNASSIGNED on a first visit) and cluster size.

    ``stats`` and ``moments`` (of all selected layer logits) include the rows. ``wait_seconds`` is the time for
    clustering that was still due; ``cluster_seconds``, of the pool alone, that of the last finished clusterings in the
    background.
    """

    sample: NDArray[np.int32]
    label: NDArray[np.int32]
    size: NDArray[np.int32]
    stats: ShardStats
    moments: Moments
    wait_seconds: float = 0.0
    assign_seconds: float = 0.0
    append_seconds: float = 0.0
    cluster_seconds: float = 0.0


class MemoryShard:
    """Stores the rows of its prompts under ``paths``; a repeated step gets the same answer and is stored once."""

    def __init__(self, paths: MemoryPaths, sharding: Sharding, settings: ShardSettings) -> None:
        self._settings = settings
        self._sharding = sharding
        self._paths = paths
        self._log = ShardLog(
            paths,
            sharding,
            log_schema(settings.layers),
            fsync=settings.fsync,
            segment_bytes=settings.segment_bytes,
            lock_seconds=settings.lock_seconds,
        )
        self._lock = threading.RLock()  # guards all attributes below; `recluster` releases it while it clusters
        self._opened = False
        self._clear()

    def observe(self, step: int, rows: pa.RecordBatch, acknowledged: int = 0) -> MemoryAnswer:
        """Label ``rows`` (columns of `memory.rows.incoming_schema`) from the rows stored before, then store them.

        ``acknowledged``: how many rows the caller knows to be stored. Raises MemoryLostError if there are fewer,
        ValueError for other columns or for a step before the last stored step (unless that step is stored), and
        OSError, with nothing stored, if the write fails.
        """
        with self._lock:
            self._open_once(acknowledged)
            earlier = self._log.rows_of(step) if step <= self._last_step else None
            return self._observe_new(step, rows) if earlier is None else self._answer(earlier)

    def recluster(self) -> float:
        """Cluster the waiting groups and return the seconds taken. May run concurrently with `observe`."""
        started = time.perf_counter()
        while True:
            with self._lock:
                if not self._opened:  # no other call has come yet, or a restore is in progress
                    return time.perf_counter() - started
                columns = self._columns
                selection = self._select(columns, columns.next_owed(GROUPS_AT_ONCE))
                features = columns.features
            if len(selection.groups) == 0:
                return time.perf_counter() - started
            labels = self._cluster(features, selection)
            with self._lock:
                columns.set_labels(selection, labels)  # harmless if a restore has replaced these columns

    def snapshot(self, acknowledged: int = 0) -> list[SegmentState]:
        """Return the state of the log's segments, for a manifest; all of their content is on disk.

        Raises MemoryLostError if the shard has fewer than ``acknowledged`` rows.
        """
        with self._lock:
            self._open_once(acknowledged)
            if not self._settings.fsync:
                self._log.sync()
            return list(self._log.states.values())

    def archive(self, uri: str, acknowledged: int = 0) -> None:
        """Copy all stored rows to the archive at ``uri``; segments that are already there are not copied again."""
        with self._lock:
            self._open_once(acknowledged)
            self._log.close_segment()
            states = [state for state in self._log.states.values() if self._log.is_mine(state.shard)]
        Archive.at(uri).store(self._paths, states)

    def restore(self, segments: list[SegmentState], archive_uri: str | None = None) -> None:
        """Restore the state described by ``segments``, those of the whole memory, and remove later rows.

        The segments may come from another number of shards; missing segments are fetched from the archive. Raises
        MemoryCorruptionError, with nothing cut, if files differ from ``segments``.
        """
        with self._lock:
            self._opened = False
            if archive_uri is not None:
                shards, is_mine = self._sharding.shards, self._log.is_mine
                needed = [state for state in segments if state.shards != shards or is_mine(state.shard)]
                Archive.at(archive_uri).fetch(self._paths, needed)
            self._log.restore(segments, disk_of_its_own=archive_uri is not None)

    def stats(self) -> ShardStats:
        """Return the shard's statistics."""
        with self._lock:
            self._open_once()
            columns, states = self._columns, self._log.states.values()
            return ShardStats(
                rows=len(columns),
                prompts=columns.prompts,
                clusters=columns.total_clusters,
                noise=columns.total_noise,
                bytes=sum(state.bytes for state in states if self._log.is_mine(state.shard)),
                owed=int(columns.owed.array.sum()),
            )

    def moments(self) -> Moments:
        """Return the moments of the selected layer logits (not scaled) of all stored rows."""
        with self._lock:
            self._open_once()
            return self._moments

    def labels(self, prompt: str, correct: bool = False) -> NDArray[np.int32]:
        """Return the labels of a prompt's rows inside the window, oldest first; empty for an unknown prompt."""
        with self._lock:
            self._open_once()
            groups = self._columns.find([prompt], [correct])
            self._settle(groups)
            return self._columns.labels[self._select(self._columns, groups).rows]

    def close(self) -> None:
        """Release the folder for other processes."""
        with self._lock:
            self._log.close()
            self._opened = False

    # ── a step ──

    def _observe_new(self, step: int, rows: pa.RecordBatch) -> MemoryAnswer:
        if len(rows) == 0:
            return self._answer(with_answer(step, rows, np.empty(0, np.int32), np.empty(0, np.int32)))
        if step < self._last_step:
            raise ValueError(f"step: {step} comes after step {self._last_step} was stored; steps only go forward")
        if not rows.schema.equals(incoming_schema(self._settings.layers)):
            raise ValueError(f"rows: columns {rows.schema.names} are not those of memory.rows.incoming_schema")
        rows = group_rows(rows)
        selected = self._settings.transform.select(layer_logits_of(rows))
        features = self._settings.transform.scale(selected)
        visits = prompts, correct, count = visits_of(rows)
        groups = self._columns.find(prompts, correct)
        started = time.perf_counter()
        if self._settings.method.assignment.method != "joint":  # "joint" clusters all rows in `_assign`
            self._settle(groups)
        settled = time.perf_counter()
        batch = with_answer(step, rows, *self._assign(features, count, groups))
        assigned = time.perf_counter()
        self._log.append(batch)
        self._take_in(step, visits, selected, features, groups)
        return self._answer(batch, settled - started, assigned - settled, time.perf_counter() - assigned)

    def _settle(self, groups: NDArray[np.int64]) -> None:
        """Cluster the ``groups`` that still wait."""
        known = groups[groups >= 0]
        waiting = known[self._columns.owed.array[known]]
        if len(waiting):
            selection = self._select(self._columns, waiting)
            self._columns.set_labels(selection, self._cluster(self._columns.features, selection))

    def _assign(
        self, new: NDArray[np.float64], count: NDArray[np.int32], groups: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return labels and sizes (m,) of ``new`` rows (m, d), of which ``count[i]`` belong to ``groups[i]``."""
        method, columns = self._settings.method, self._columns
        new_offsets = np.concatenate([[0], np.cumsum(count, dtype=np.int64)])
        selection = self._select(columns, groups)
        stored, offsets = columns.features[selection.rows], selection.offsets
        if method.assignment.method == "joint":
            return assign_jointly(new, new_offsets, stored, offsets, method.clustering, method.noise)
        stored_labels = columns.labels[selection.rows]
        labels = assign_sets(new, new_offsets, stored, offsets, stored_labels, method.assignment)
        return labels, sizes_of(labels, new_offsets, stored_labels, offsets, method.noise)

    def _select(self, columns: Columns, groups: NDArray[np.int64]) -> Selection:
        """Select the rows of ``groups`` inside the method's window."""
        method = self._settings.method
        return columns.select(groups, method.window_rows, method.window_visits)

    def _cluster(self, features: NDArray[np.float64], selection: Selection) -> NDArray[np.int32]:
        return cluster_sets(features[selection.rows], selection.offsets, self._settings.method.clustering)

    def _answer(
        self,
        batch: pa.RecordBatch,
        wait_seconds: float = 0.0,
        assign_seconds: float = 0.0,
        append_seconds: float = 0.0,
    ) -> MemoryAnswer:
        return MemoryAnswer(
            sample=batch.column("sample").to_numpy(zero_copy_only=False),
            label=labels_of(batch),
            size=batch.column("cluster_size").to_numpy(zero_copy_only=False),
            stats=self.stats(),
            moments=self.moments(),
            wait_seconds=wait_seconds,
            assign_seconds=assign_seconds,
            append_seconds=append_seconds,
        )

    # ── what is stored ──

    def _clear(self) -> None:
        self._columns = Columns(self._settings.transform.dimensions(self._settings.layers))
        self._moments = NO_MOMENTS  # of the selected layer logits
        self._last_step = -1

    def _open_once(self, acknowledged: int = 0) -> None:
        if not self._opened:
            self._clear()
            for batch in self._log.open():
                selected = self._settings.transform.select(layer_logits_of(batch))
                features = self._settings.transform.scale(selected)
                self._take_in(step_of(batch), visits_of(batch), selected, features)
            self._opened = True
        self._require_all(acknowledged)

    def _take_in(
        self,
        step: int,
        visits: tuple[list[str], list[bool], NDArray[np.int32]],
        selected: NDArray[np.float64],
        features: NDArray[np.float64],
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """Add a stored batch to the columns in RAM: its `visits_of`, selected logits and features."""
        self._columns.add(*visits, features, groups)
        self._moments = self._moments.merge(Moments.of(selected))
        self._last_step = step

    def _require_all(self, acknowledged: int) -> None:
        if len(self._columns) >= acknowledged:
            return
        folder, place = self._paths.shard(self._sharding.shard), socket.gethostname()
        message = (
            f"{folder} on {place}: holds {len(self._columns)} of {acknowledged} rows that were stored by shard "
            f"{self._sharding.shard} of {self._sharding.shards}; the rest of that "
            "memory cannot be reached from here"
        )
        if not self._settings.forget_lost_rows:
            raise MemoryLostError(f"{message}. Give all nodes the same disk, or set meds.memory.on_lost to forget")
        logger.warning("%s and is forgotten", message)
