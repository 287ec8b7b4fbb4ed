"""One shard of the memory: a subset of the prompts and their rows. A plain class that does not depend on Ray.

The log on disk is authoritative and is read once; answers come from the history in RAM. `observe` answers and stores;
`recluster` may run in another thread at the same time. `recluster` does not affect answers, because `observe` clusters
the groups that it needs if they are still waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.method import PRESETS, ClusteringMethod
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features.kind import transform_of
from meds_openrlhf.features.moments import NO_MOMENTS, Moments
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.locks import WAIT_SECONDS
from meds_openrlhf.memory.assignment import assign
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.log import LogState, ShardLog, StoredStep
from meds_openrlhf.memory.rows import (
    Sharding,
    group_rows,
    groups_of,
    incoming_schema,
    layer_logits_of,
    log_schema,
    logged_answer,
    with_answer,
)
from meds_openrlhf.memory.sets import UNASSIGNED, Sets
from meds_openrlhf.memory.successes import DECAY, NO_COUNTS, Counts, Successes, Visit, require_counts
from meds_openrlhf.paths import MemoryPaths

GROUPS_AT_ONCE = 64  # clustered in one compiled call of some milliseconds, after which `observe` can run
NO_TIME = {"wait": 0.0, "assign": 0.0, "append": 0.0}
NO_LABELS = np.empty(0, np.int32)

Key = tuple[str, bool]  # prompt, and whether the rollouts were right


@dataclass(frozen=True)
class ShardSettings:
    """How a shard computes features of rows and clusters them; ``layers`` is the number of logits in a row.

    ``success_decay``: what a visit counts for a prompt's remembered success after each later one.
    """

    layers: int
    transform: FeatureTransform = field(default_factory=FeatureTransform)
    method: ClusteringMethod = field(default_factory=lambda: PRESETS["paper"])
    lock_seconds: float | None = WAIT_SECONDS
    success_decay: float = DECAY

    @staticmethod
    def of(meds: MedsSettings, layers: int) -> ShardSettings:
        """Those of a run. Raises ConfigError if its features need more layers."""
        memory = meds.memory
        return ShardSettings(layers, transform_of(meds, layers), memory.method, meds.lock_seconds, memory.success_decay)


@dataclass(frozen=True)
class ShardStats:
    """Contents of a shard; ``clusters`` and ``noise`` are as of the last clustering; ``bytes``: of its files;
    ``stale``: groups (rows of one prompt and verdict) that wait to be clustered; ``visits``: counted ones, of
    ``visited`` prompts, of which ``solved`` had a right response.
    """

    rows: int = 0
    prompts: int = 0
    clusters: int = 0
    noise: int = 0
    bytes: int = 0
    stale: int = 0
    visits: int = 0
    visited: int = 0
    solved: int = 0


@dataclass(frozen=True)
class MemoryAnswer:
    """For each row (n,) the rollout's index, its label (-1 for noise, UNASSIGNED on a first visit) and cluster size.

    ``stats`` and ``moments`` (of all selected layer logits) include the rows. ``visits`` are those of the counts, by
    prompt, with the success remembered before. ``seconds`` are those of clustering that
    was still due ("wait"), of labeling ("assign") and of the durable write ("append"), and from the pool also those of
    the last finished clusterings in the background ("cluster").
    """

    sample: NDArray[np.int32]
    label: NDArray[np.int32]
    size: NDArray[np.int32]
    stats: ShardStats
    moments: Moments
    seconds: Mapping[str, float] = field(default_factory=NO_TIME.copy)
    visits: Mapping[str, Visit] = field(default_factory=dict)


def extended(array: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return ``array``, the first rows of its base, with ``values`` appended; the base doubles if it is full."""
    base, begin, end = array.base, len(array), len(array) + len(values)
    if base is None or end > len(base):
        base = np.empty((max(end, 2 * begin), *array.shape[1:]), array.dtype)
        base[:begin] = array
    base[begin:end] = values
    return base[:end]


@dataclass(eq=False)
class Group:
    """The numbers (n,) of a group's rows, oldest first; clusters and noise rows as of its last clustering."""

    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    clusters: int = 0
    noise: int = 0


@dataclass(frozen=True)
class Selection:
    """All rows (n,) of some groups (g): group i has ``rows[offsets[i]:offsets[i + 1]]``."""

    groups: Sequence[Group]
    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]  # (g + 1,)


class History:
    """The rows of one shard in RAM: features and labels by row number, and the row numbers of each group.

    A group is all rows of one prompt with one verdict. Rows are numbered in the order of arrival. ``dimensions`` is the
    number of values of a feature. ``successes`` are of the prompts, with or without rows.
    """

    def __init__(self, dimensions: int, success_decay: float = DECAY) -> None:
        self.successes = Successes(success_decay)
        self.groups: dict[Key, Group] = {}
        self.prompts = 0  # number of prompts with rows
        self.clusters = self.noise = 0  # totals over the groups
        self.stale: dict[Group, None] = {}  # groups with rows newer than their last clustering, oldest first
        self.features = np.empty((0, dimensions))  # (n, d) to cluster
        self.labels = np.empty(0, np.int32)  # (n,) from the last clustering of a row's group; UNASSIGNED before it

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, groups: Sequence[tuple[Key, int]], features: NDArray[np.float64]) -> None:
        """Append ``features`` (n, d), the rows of ``groups`` in their order: each a key and a number of rows."""
        begin = len(self)
        self.features = extended(self.features, features)
        self.labels = extended(self.labels, np.full(len(features), UNASSIGNED, np.int32))
        for key, count in groups:
            group = self.groups.get(key)
            if group is None:
                prompt, correct = key
                self.prompts += (prompt, not correct) not in self.groups
                group = self.groups[key] = Group()
            group.rows = np.concatenate([group.rows, np.arange(begin, begin + count)])
            self.stale.setdefault(group)
            begin += count

    def find(self, keys: Sequence[Key]) -> list[Group]:
        """Return a group for each key, an empty one if it has no rows."""
        return [self.groups.get(key) or Group() for key in keys]

    def select(self, groups: Sequence[Group]) -> Selection:
        """Select all rows of ``groups``."""
        rows = np.concatenate([np.empty(0, np.int64), *(group.rows for group in groups)])
        return Selection(groups, rows, np.cumsum([0, *(len(group.rows) for group in groups)]))

    def cluster(self, groups: Sequence[Group], method: ClusteringMethod) -> None:
        """Cluster the ``groups`` that wait to be clustered."""
        selection = self.select([group for group in groups if group in self.stale])
        self.set_labels(selection, cluster_sets(self.features[selection.rows], selection.offsets, method))

    def set_labels(self, selection: Selection, labels: NDArray[np.int32]) -> None:
        """Store the labels (n,) of a selection. A group that has new rows since keeps its labels and stays stale."""
        for group, begin, end in zip(selection.groups, selection.offsets[:-1], selection.offsets[1:]):
            if end - begin != len(group.rows) or begin == end:
                continue
            of_group = labels[begin:end]
            self.labels[group.rows] = of_group
            clusters, noise = int(of_group.max()) + 1, int((of_group < 0).sum())
            self.clusters += clusters - group.clusters
            self.noise += noise - group.noise
            group.clusters, group.noise = clusters, noise
            self.stale.pop(group, None)


class MemoryShard:
    """Stores the rows of its prompts under ``paths``; a repeated step gets the same answer and is stored once."""

    def __init__(self, paths: MemoryPaths, sharding: Sharding, settings: ShardSettings) -> None:
        self._settings = settings
        self._log = ShardLog(paths, sharding, log_schema(settings.layers), settings.lock_seconds)
        self._lock = threading.RLock()  # guards all attributes below; `recluster` releases it while it clusters
        self._history: History | None = None  # None until the first call reads the log
        self._moments = NO_MOMENTS  # of the selected layer logits

    def observe(self, step: int, rows: pa.RecordBatch, counts: Counts = NO_COUNTS) -> MemoryAnswer:
        """Label ``rows`` (columns of `memory.rows.incoming_schema`) from the rows stored before, then store them.

        ``counts`` are of all responses to the step's prompts, and are stored too. Raises ValueError for other columns,
        for counts that cannot be, and for a step before the last stored step, unless it is stored with the same rows
        and counts; and OSError, with nothing stored, if the write fails.
        """
        with self._lock:
            history = self._opened()
            stored = self._log.stored(step) if step <= self._log.last_step else None
            if stored is None:
                return self._observe_new(history, step, rows, counts)
            known = {prompt: visit[:2] for prompt, visit in stored.visits.items()}
            samples, wanted = (np.sort(batch.column("sample").to_numpy()) for batch in (stored.rows, rows))
            if known != counts or not np.array_equal(samples, wanted):
                raise ValueError(f"step={step}: is already stored with other rows. Observe each step only once.")
            return self._answer(stored)

    def recluster(self) -> float:
        """Cluster the waiting groups and return the seconds taken. May run concurrently with `observe`."""
        started = time.perf_counter()
        while True:
            with self._lock:
                history = self._history
                if history is None:  # no other call has opened the log yet, or a restore is in progress
                    break
                selection = history.select(list(islice(history.stale, GROUPS_AT_ONCE)))
                features = history.features
            if not selection.groups:
                break
            labels = cluster_sets(features[selection.rows], selection.offsets, self._settings.method)
            with self._lock:
                history.set_labels(selection, labels)  # harmless if a restore has replaced this history
        return time.perf_counter() - started

    def snapshot(self) -> LogState:
        """Return the state of the log, for `restore`; all of it is on disk, in fewer files than before."""
        with self._lock:
            self._opened()
            return self._log.merge()

    def restore(self, state: LogState) -> None:
        """Remove steps newer than ``state``, that of all shards. Raises MemoryCorruptionError if the others differ."""
        with self._lock:
            self._history = None
            self._log.restore(state)

    def stats(self) -> ShardStats:
        """Return the shard's statistics."""
        with self._lock:
            history = self._opened()
            successes = history.successes
            return ShardStats(
                rows=len(history),
                prompts=history.prompts,
                clusters=history.clusters,
                noise=history.noise,
                bytes=self._log.bytes,
                stale=len(history.stale),
                visits=successes.visits,
                visited=successes.visited,
                solved=successes.solved,
            )

    def labels(self, prompt: str, correct: bool = False) -> NDArray[np.int32]:
        """Return the labels of a prompt's rows, oldest first; empty for an unknown prompt."""
        with self._lock:
            history = self._opened()
            groups = history.find([(prompt, correct)])
            history.cluster(groups, self._settings.method)
            return history.labels[groups[0].rows]

    def close(self) -> None:
        """Release the folder for other processes."""
        with self._lock:
            self._log.close()
            self._history = None

    def _observe_new(self, history: History, step: int, rows: pa.RecordBatch, counts: Counts) -> MemoryAnswer:
        if not len(rows) and not counts:
            return self._answer(StoredStep(step, with_answer(step, rows, NO_LABELS, NO_LABELS), {}))
        if step < self._log.last_step:
            raise ValueError(f"step={step}: must not be below {self._log.last_step}, the last stored step.")
        require_counts(counts)
        if not rows.schema.equals(incoming_schema(self._settings.layers)):
            raise ValueError(f"rows: columns {rows.schema.names} are not those of memory.rows.incoming_schema")
        rows = group_rows(rows)
        selected = self._settings.transform.select(layer_logits_of(rows))
        features = self._settings.transform.scale(selected)
        groups = groups_of(rows)
        stored_groups = history.find([key for key, _ in groups])
        started = time.perf_counter()
        if self._settings.method.assignment == "knn":  # "joint" clusters stored and new rows together
            history.cluster(stored_groups, self._settings.method)
        clustered = time.perf_counter()
        labels, sizes = NO_LABELS, NO_LABELS
        if len(rows):
            stored, new_offsets = history.select(stored_groups), np.cumsum([0, *(count for _, count in groups)])
            known = history.features[stored.rows], stored.offsets, history.labels[stored.rows]
            labels, sizes = assign(Sets(features, new_offsets, *known), self._settings.method)
        batch = with_answer(step, rows, labels, sizes)
        visits = history.successes.visits_of(counts)
        assigned = time.perf_counter()
        self._log.append(StoredStep(step, batch, visits))
        history.add(groups, features)
        history.successes.add(visits)
        self._moments = self._moments.merge(Moments.of(selected))
        stored_at = time.perf_counter()
        seconds = {"wait": clustered - started, "assign": assigned - clustered, "append": stored_at - assigned}
        return self._answer(StoredStep(step, batch, visits), seconds)

    def _answer(self, stored: StoredStep, seconds: Mapping[str, float] = NO_TIME) -> MemoryAnswer:
        sample, label, size = logged_answer(stored.rows)
        return MemoryAnswer(sample, label, size, self.stats(), self._moments, seconds, stored.visits)

    def _opened(self) -> History:
        """Return the rows in RAM; the first call reads them from the log."""
        if self._history is None:
            transform, self._moments = self._settings.transform, NO_MOMENTS
            history = History(transform.dimensions(self._settings.layers), self._settings.success_decay)
            for _, rows, visits in self._log.open():
                selected = transform.select(layer_logits_of(rows))
                history.add(groups_of(rows), transform.scale(selected))
                history.successes.add(visits)
                self._moments = self._moments.merge(Moments.of(selected))
            self._history = history
        return self._history
