"""One shard of the memory: some of the prompts, their log, and the answers given from them. A plain class.

`observe` answers and stores; `recluster` may run in another thread at the same time. Nothing that it does changes an
answer: whatever `observe` needs that is not clustered yet, it clusters itself.
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
from meds_openrlhf.memory.archive import Archive
from meds_openrlhf.memory.assignment import assign_sets, sizes_of
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.errors import MemoryLostError
from meds_openrlhf.memory.joint import assign_jointly
from meds_openrlhf.memory.log import SEGMENT_BYTES, SegmentLog
from meds_openrlhf.memory.moments import Moments, merge_moments
from meds_openrlhf.memory.presets import PRESETS, Method
from meds_openrlhf.memory.prompt_features import PromptFeatures, Window
from meds_openrlhf.memory.routing import shard_of
from meds_openrlhf.memory.row_index import RowIndex
from meds_openrlhf.memory.rows import group_rows, incoming_schema, labels_of, layer_logits_of, log_schema, with_answer
from meds_openrlhf.memory.segment import SegmentState, Sharding
from meds_openrlhf.memory.segment_index import visits_of
from meds_openrlhf.memory.stored_segment import StoredSegment, Visits
from meds_openrlhf.paths import MemoryPaths

logger = logging.getLogger(__name__)

GROUPS_AT_ONCE = 64  # clustered in one compiled call of some milliseconds; then `observe` may have its turn


@dataclass(frozen=True)
class ShardSettings:
    """How a shard makes features of rows, clusters them and writes them down.

    ``forget_lost_rows``: go on, with a warning, where acknowledged rows cannot be reached any more.
    """

    layers: int
    transform: FeatureTransform = field(default_factory=FeatureTransform)
    method: Method = field(default_factory=lambda: PRESETS["paper"])
    fsync: bool = True
    segment_bytes: int = SEGMENT_BYTES
    forget_lost_rows: bool = False


@dataclass(frozen=True)
class ShardStats:
    """What a shard holds, clusters and noise as of the last clustering; ``bytes`` of segments.

    ``owed``: groups of rows, of one prompt and verdict each, that wait to be clustered.
    """

    rows: int = 0
    prompts: int = 0
    clusters: int = 0
    noise: int = 0
    bytes: int = 0
    owed: int = 0


@dataclass(frozen=True)
class ShardAnswer:
    """Per row handed in: its rollout's index, its cluster and its size, -1 for noise and UNASSIGNED for a first visit.

    ``wait_seconds`` went into clusterings that should have been over, ``moments`` are of all selected layer logits.
    """

    sample: NDArray[np.int32]
    label: NDArray[np.int32]
    size: NDArray[np.int32]
    stats: ShardStats
    moments: Moments
    wait_seconds: float = 0.0
    assign_seconds: float = 0.0
    append_seconds: float = 0.0


class MemoryShard:
    """Remembers rows of its prompts below ``paths``; asked twice for a step, it answers the same and stores once."""

    def __init__(self, paths: MemoryPaths, sharding: Sharding, settings: ShardSettings) -> None:
        self._settings = settings
        self._sharding = sharding
        self._paths = paths
        self._window = Window.of(settings.method)
        self._log = SegmentLog(
            paths, sharding, log_schema(settings.layers), fsync=settings.fsync, segment_bytes=settings.segment_bytes
        )
        self._lock = threading.RLock()  # of everything below; never held while a clustering runs
        self._opened = False
        self._last_batch: pa.RecordBatch | None = None
        self._clear()

    def observe(self, step: int, rows: pa.RecordBatch, acknowledged: int = 0) -> ShardAnswer:
        """Label ``rows`` (columns of `memory.rows.incoming_schema`) by what was known before, then store them durably.

        ``acknowledged``: how many rows the caller knows to be stored. Raises MemoryLostError where fewer are there,
        ValueError for other columns or a step before the last one stored (unless its answer is on file), and OSError,
        with nothing stored, where the disk refuses.
        """
        with self._lock:
            self._open_once()
            self._require_all(acknowledged)
            earlier = self._answer_on_file(step)
            if earlier is not None:
                return self._answer(earlier)
            return self._observe_new(step, rows)

    def recluster(self) -> float:
        """Cluster the prompts that are owed it; the seconds that it took. May run beside `observe`."""
        started = time.perf_counter()
        while True:
            with self._lock:
                if not self._opened:  # nothing has been asked of it yet, or a restore is under way
                    return time.perf_counter() - started
                groups = self._index.next_owed(GROUPS_AT_ONCE)
                selection, features = self._features.select(groups, self._window)
                index = self._index
            if len(groups) == 0:
                return time.perf_counter() - started
            labels = cluster_sets(features, selection.offsets, self._settings.method.clustering)
            with self._lock:
                if index is self._index:  # no restore meanwhile
                    index.set_labels(selection, labels)

    def snapshot(self, acknowledged: int = 0) -> list[SegmentState]:
        """How far the log has been written, for a manifest; all of it is on the disk.

        Raises MemoryLostError where that is less than ``acknowledged`` rows.
        """
        with self._lock:
            self._open_once()
            self._require_all(acknowledged)
            if not self._settings.fsync:
                self._log.sync()
            return self._log.states

    def archive(self, uri: str, acknowledged: int = 0) -> None:
        """Copy everything stored so far to the archive at ``uri``; what is there already is not copied again."""
        with self._lock:
            self._open_once()
            self._require_all(acknowledged)
            self._log.seal()
            own = [segment.state for segment in self._log.segments if self._counts(segment)]
        Archive.at(uri).store(self._paths, own)

    def restore(self, segments: list[SegmentState], archive_uri: str | None = None) -> None:
        """Go back to the moment that ``segments``, those of the whole memory, describe; what came later is cut away.

        The segments may have been written by more or fewer shards; those that are not here come from the archive.
        Raises MemoryCorruptionError, with nothing cut, where the files are not what they were.
        """
        with self._lock:
            self._opened = False
            if archive_uri is not None:
                needed = [one for one in segments if one.shards != self._sharding.shards or self._is_mine(one.shard)]
                Archive.at(archive_uri).fetch(self._paths, needed)
            folders = {one.shard for one in segments} | self._paths.shard_folders().keys() | {self._sharding.shard}
            self._log.restore(segments, {number for number in folders if self._is_mine(number)})

    def stats(self) -> ShardStats:
        """What the shard holds."""
        with self._lock:
            self._open_once()
            index = self._index
            return ShardStats(
                rows=index.rows,
                prompts=index.prompts,
                clusters=index.total_clusters,
                noise=index.total_noise,
                bytes=sum(segment.index.bytes for segment in self._log.segments if self._counts(segment)),
                owed=int(index.owed.array.sum()),
            )

    def moments(self) -> Moments:
        """Moments of the selected layer logits (not scaled) of all rows stored."""
        with self._lock:
            self._open_once()
            of_all_layers = merge_moments([one.index.moments for one in self._log.segments if self._counts(one)])
            return of_all_layers.mapped(self._settings.transform.matrix(self._settings.layers))

    def labels(self, prompt: str, correct: bool = False) -> NDArray[np.int32]:
        """Labels of a prompt's rows inside the window, oldest first; empty for a prompt never seen."""
        with self._lock:
            self._open_once()
            groups = self._index.find([prompt], [correct])
            self._settle(groups)
            return self._index.labels.array[self._index.select(groups, self._window.rows, self._window.visits).rows]

    def close(self) -> None:
        """Give the folder back."""
        with self._lock:
            self._log.close()
            self._opened = False

    # ── rows and answers ──

    def _observe_new(self, step: int, rows: pa.RecordBatch) -> ShardAnswer:
        if len(rows) == 0:
            return self._answer(with_answer(step, rows, *_nothing()))
        if step < self._last_step:
            raise ValueError(f"step: {step} comes after step {self._last_step} was stored; steps only go forward")
        if not rows.schema.equals(incoming_schema(self._settings.layers)):
            raise ValueError(f"rows: columns {rows.schema.names} are not those of memory.rows.incoming_schema")
        rows = group_rows(rows)
        prompts, correct, _, counts = visits_of(rows)
        groups = self._index.find(prompts, correct)
        started = time.perf_counter()
        if self._settings.method.assignment.method != "joint":  # which clusters everything itself
            self._settle(groups)
        settled = time.perf_counter()
        labels, sizes = self._assign(rows, groups, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))
        assigned = time.perf_counter()
        batch = with_answer(step, rows, labels, sizes)
        self._store(batch, step, groups)
        appended = time.perf_counter()
        return self._answer(batch, settled - started, assigned - settled, appended - assigned)

    def _assign(
        self, rows: pa.RecordBatch, groups: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Labels and sizes (m,) of rows, of which ``offsets[i]:offsets[i + 1]`` are of group ``groups[i]``."""
        method = self._settings.method
        new = self._settings.transform(layer_logits_of(rows))
        selection, stored = self._features.select(groups, self._window)
        if method.assignment.method == "joint":
            return assign_jointly(method, new, offsets, stored, selection.offsets)
        stored_labels = self._index.labels.array[selection.rows]
        labels = assign_sets(new, offsets, stored, selection.offsets, stored_labels, method.assignment)
        return labels, sizes_of(labels, offsets, stored_labels, selection.offsets, method.noise)

    def _settle(self, groups: NDArray[np.int64]) -> None:
        """Cluster those of ``groups`` that are still owed it."""
        known = groups[groups >= 0]
        owed = known[self._index.owed.array[known]]
        if len(owed):
            selection, features = self._features.select(owed, self._window)
            labels = cluster_sets(features, selection.offsets, self._settings.method.clustering)
            self._index.set_labels(selection, labels)

    def _store(self, batch: pa.RecordBatch, step: int, groups: NDArray[np.int64]) -> None:
        """Make a batch durable, whose visits are of ``groups``, and take it in."""
        visits = self._log.append(batch, step)
        self._index.add(
            visits.prompts, visits.correct, len(self._log.segments) - 1, visits.offset, visits.count, groups
        )
        self._last_step = step
        self._last_batch = batch

    def _answer(
        self,
        batch: pa.RecordBatch,
        wait_seconds: float = 0.0,
        assign_seconds: float = 0.0,
        append_seconds: float = 0.0,
    ) -> ShardAnswer:
        return ShardAnswer(
            sample=batch.column("sample").to_numpy(zero_copy_only=False),
            label=labels_of(batch),
            size=batch.column("cluster_size").to_numpy(zero_copy_only=False),
            stats=self.stats(),
            moments=self.moments(),
            wait_seconds=wait_seconds,
            assign_seconds=assign_seconds,
            append_seconds=append_seconds,
        )

    def _answer_on_file(self, step: int) -> pa.RecordBatch | None:
        """This shard's rows of a step that is stored already."""
        if step > self._last_step:
            return None
        if step == self._last_step and self._last_batch is not None:
            return self._last_batch
        own = [self._own_rows(batch) for batch in self._log.batches_of(step)]
        own = [batch for batch in own if len(batch)]
        return pa.concat_batches(own) if own else None

    def _own_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pa.array([self._is_own(prompt) for prompt in batch.column("prompt").to_pylist()]))

    def _is_own(self, prompt: str) -> bool:
        return shard_of(prompt, self._sharding.shards) == self._sharding.shard

    # ── what is on the disk ──

    def _clear(self) -> None:
        self._index = RowIndex()
        self._features = PromptFeatures(
            self._index, self._log.segments, self._settings.transform, self._settings.layers
        )
        self._last_step = -1
        self._last_batch = None

    def _open_once(self) -> None:
        if self._opened:
            return
        self._log.open()
        self._clear()
        for number, segment in enumerate(self._log.segments):
            self._index_visits(number, segment.visits())
        self._last_step = max((segment.last_step for segment in self._log.segments), default=-1)
        self._opened = True

    def _index_visits(self, number: int, visits: Visits) -> None:
        # Of an earlier division not all of them are of this shard.
        if self._log.segments[number].index.sharding != self._sharding:
            visits = visits.only(np.array([self._is_own(prompt) for prompt in visits.prompts], dtype=bool))
        self._index.add(visits.prompts, visits.correct, number, visits.offset, visits.count)

    def _counts(self, segment: StoredSegment) -> bool:
        """Whether bytes and moments of a segment are this shard's to report: each segment is some shard's."""
        return self._is_mine(segment.index.sharding.shard)

    def _is_mine(self, shard_number: int) -> bool:
        """Whether the files of a shard, of whatever division, are this one's to keep in order."""
        return shard_number % self._sharding.shards == self._sharding.shard

    def _require_all(self, acknowledged: int) -> None:
        if self._index.rows >= acknowledged:
            return
        folder, place = self._paths.shard(self._sharding.shard), socket.gethostname()
        message = (
            f"{folder} on {place}: holds {self._index.rows} of {acknowledged} rows that were stored by shard "
            f"{self._sharding.shard} of {self._sharding.shards}; the rest of that "
            "memory cannot be reached from here"
        )
        if not self._settings.forget_lost_rows:
            raise MemoryLostError(f"{message}. Give all nodes the same disk, or set meds.memory.on_lost to forget")
        logger.warning("%s and is forgotten", message)


def _nothing() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return np.empty(0, np.int32), np.empty(0, np.int32)
