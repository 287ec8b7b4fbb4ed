"""One shard of the memory: some of the prompts, their log, and the answers given from them. A plain class."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import NOISE, Clustering
from meds_openrlhf.memory.log import SegmentLog, SegmentState
from meds_openrlhf.memory.moments import NO_MOMENTS, Moments
from meds_openrlhf.memory.prompt import PromptMemory
from meds_openrlhf.memory.rows import layer_logits_of, log_schema, with_answer


@dataclass(frozen=True)
class ShardSettings:
    """How a shard makes features of rows, clusters them and writes them down."""

    layers: int
    transform: FeatureTransform = field(default_factory=FeatureTransform)
    clustering: Clustering = field(default_factory=Clustering)
    neighbors: int = 3
    fsync: bool = True


@dataclass(frozen=True)
class ShardStats:
    """What a shard holds, as of its last clustering."""

    rows: int = 0
    prompts: int = 0
    clusters: int = 0
    noise: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class ShardAnswer:
    """Per row handed in: its rollout's index, its cluster (-1 noise) and the rows stored there before this step."""

    sample: NDArray[np.int32]
    label: NDArray[np.int32]
    size: NDArray[np.int32]
    stats: ShardStats
    moments: Moments
    assign_seconds: float = 0.0
    append_seconds: float = 0.0


class MemoryShard:
    """Remembers rows of its prompts in ``folder``; asked twice for a step, it answers the same and stores once."""

    def __init__(self, folder: Path, settings: ShardSettings) -> None:
        self._settings = settings
        self._schema = log_schema(settings.layers)
        self._log = SegmentLog(folder, self._schema, fsync=settings.fsync)
        self._loaded = False
        self._prompts: dict[str, PromptMemory] = {}
        self._touched: dict[str, None] = {}  # an ordered set: prompts owed a clustering
        self._clusters = self._noise = 0
        self._last_step = -1
        self._last_batch: pa.RecordBatch | None = None
        self._moments = NO_MOMENTS

    def observe(self, step: int, rows: pa.RecordBatch) -> ShardAnswer:
        """Label ``rows`` (columns of `memory.rows.incoming_schema`) by what was known before, then store them durably.

        Raises ValueError for a step before the last one stored, unless its answer is on file, and OSError, with
        nothing stored, where the disk refuses.
        """
        self._load_once()
        earlier = self._answer_on_file(step)
        if earlier is not None:
            return self._answer(earlier)
        if step < self._last_step:
            raise ValueError(f"step: {step} comes after step {self._last_step} was stored; steps only go forward")
        started = time.perf_counter()
        selected = self._settings.transform.select(layer_logits_of(rows))
        labels, sizes = self._assign(rows, selected)
        assigned = time.perf_counter()
        batch = with_answer(step, rows, labels, sizes)
        if len(batch):
            self._log.append(batch, step)
            self._remember(batch, selected)
        appended = time.perf_counter()
        return self._answer(batch, assigned - started, appended - assigned)

    def recluster(self) -> float:
        """Cluster the prompts touched since the last time; the seconds that it took."""
        self._load_once()
        started = time.perf_counter()
        for prompt in self._touched:
            self._recluster_prompt(prompt)
        self._touched.clear()
        return time.perf_counter() - started

    def snapshot(self) -> list[SegmentState]:
        """How far the log has been written, for a manifest; all of it is on the disk."""
        self._load_once()
        if not self._settings.fsync:
            self._log.sync()
        return self._log.segments

    def restore(self, segments: list[SegmentState]) -> ShardStats:
        """Go back to the moment that ``segments`` describe; rows stored later are cut away.

        Raises MemoryCorruptionError, with nothing cut, where the files are not what they were.
        """
        self._log.truncate(segments)
        self._load()
        return self.stats()

    def stats(self) -> ShardStats:
        """What the shard holds."""
        self._load_once()
        return ShardStats(
            rows=self._moments.count,
            prompts=len(self._prompts),
            clusters=self._clusters,
            noise=self._noise,
            bytes=sum(segment.bytes for segment in self._log.segments),
        )

    def moments(self) -> Moments:
        """Moments of the selected layer logits (not scaled) of all rows stored."""
        self._load_once()
        return self._moments

    def labels(self, prompt: str) -> NDArray[np.int32]:
        """Labels of a prompt's rows, in the order in which they were stored; empty for a prompt never seen."""
        self._load_once()
        if prompt not in self._prompts:
            return np.empty(0, dtype=np.int32)
        if prompt in self._touched:
            self._recluster_prompt(prompt)
            del self._touched[prompt]
        return self._prompts[prompt].labels

    # ── rows and answers ──

    def _assign(self, rows: pa.RecordBatch, selected: NDArray[np.float64]) -> tuple[NDArray[np.int32], ...]:
        labels = np.full(len(rows), NOISE, dtype=np.int32)
        sizes = np.zeros(len(rows), dtype=np.int32)
        features = self._settings.transform.scale(selected)
        for prompt, indices in rows_by_prompt(rows).items():
            if prompt in self._prompts:
                self.labels(prompt)  # settles a clustering that is still owed
                answer = self._prompts[prompt].assign(features[indices], self._settings.neighbors)
                labels[indices], sizes[indices] = answer
        return labels, sizes

    def _remember(self, batch: pa.RecordBatch, selected: NDArray[np.float64]) -> None:
        """Take rows that are in the log into memory; their prompts are owed a clustering."""
        features = self._settings.transform.scale(selected)
        for prompt, indices in rows_by_prompt(batch).items():
            memory = self._prompts.setdefault(prompt, PromptMemory(features.shape[1]))
            memory.append(features[indices])
            self._touched[prompt] = None
        added = Moments.of(selected)
        self._moments = self._moments.merge(added)
        self._last_batch = batch
        self._last_step = max(self._last_step, batch.column("step")[0].as_py())

    def _answer(self, batch: pa.RecordBatch, assign_seconds: float = 0.0, append_seconds: float = 0.0) -> ShardAnswer:
        return ShardAnswer(
            sample=batch.column("sample").to_numpy(zero_copy_only=False),
            label=batch.column("label").to_numpy(zero_copy_only=False),
            size=batch.column("cluster_size").to_numpy(zero_copy_only=False),
            stats=self.stats(),
            moments=self._moments,
            assign_seconds=assign_seconds,
            append_seconds=append_seconds,
        )

    def _answer_on_file(self, step: int) -> pa.RecordBatch | None:
        if step > self._last_step:
            return None
        if step == self._last_step:
            return self._last_batch
        return next((batch for batch in self._log.read() if batch.column("step")[0].as_py() == step), None)

    def _recluster_prompt(self, prompt: str) -> None:
        memory = self._prompts[prompt]
        self._clusters -= memory.clusters
        self._noise -= int((memory.labels == NOISE).sum())
        memory.recluster(self._settings.clustering)
        self._clusters += memory.clusters
        self._noise += int((memory.labels == NOISE).sum())

    # ── what is on the disk ──

    def _forget(self) -> None:
        self._prompts.clear()
        self._touched.clear()
        self._clusters = self._noise = 0
        self._last_step = -1
        self._last_batch = None
        self._moments = NO_MOMENTS

    def _load_once(self) -> None:
        if not self._loaded:
            self._load()

    def _load(self) -> None:
        self._forget()
        for batch in self._log.load():
            self._remember(batch, self._settings.transform.select(layer_logits_of(batch)))
        self._loaded = True


def rows_by_prompt(rows: pa.RecordBatch) -> dict[str, NDArray[np.intp]]:
    """Indices of each prompt's rows, in row order; prompts in the order of their first row."""
    groups: dict[str, list[int]] = {}
    for index, prompt in enumerate(rows.column("prompt").to_pylist()):
        groups.setdefault(prompt, []).append(index)
    return {prompt: np.array(indices) for prompt, indices in groups.items()}
