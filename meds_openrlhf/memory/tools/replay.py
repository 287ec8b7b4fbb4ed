"""Replays recorded rollouts through a memory with other settings, without training.

The replay uses a real memory shard to store, cluster and answer, in a temporary folder.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.files import published_file
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.rows import make_rows, remembered_rows
from meds_openrlhf.memory.segment import Sharding
from meds_openrlhf.memory.settings import features_of_rows, method_of, transform_of
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings
from meds_openrlhf.memory.tools.recorded_rows import ANSWER_COLUMNS, RecordedStep, Recording
from meds_openrlhf.paths import MemoryPaths
from meds_openrlhf.shaping.penalty import cluster_penalty

ANSWER_FIELDS = [
    pa.field("label", pa.int64()),
    pa.field("cluster_size", pa.int64(), nullable=False),
    pa.field("penalty", pa.float32(), nullable=False),
]


@dataclass
class ReplaySummary:
    """Counts of rollouts: all, ``remembered``, labelled (``assigned``), ``penalized``, with non-finite logits.

    ``penalty`` is the sum over all rollouts; ``clusters`` and ``noise`` are from the last clustering.
    """

    rows: int = 0
    remembered: int = 0
    assigned: int = 0
    penalized: int = 0
    broken: int = 0
    penalty: float = 0.0
    clusters: int = 0
    noise: int = 0


def replay(recording: Recording, settings: MedsSettings, target: Path) -> ReplaySummary:
    """Write the rows of ``recording`` to ``target``, an Arrow IPC file, with label, cluster size and penalty.

    The added columns are ``label`` (int64; -1 for noise; null for a rollout without a feature, with a verdict that is
    not remembered, or on a first visit), ``cluster_size`` (int64) and ``penalty`` (float32, 0 without a label). Rows
    keep their order; the labels of a step depend on earlier steps only. Raises ConfigError if the rows do not match the
    settings.
    """
    summary = ReplaySummary()
    schema = _answered_schema(recording.schema)
    with (
        published_file(target) as path,
        tempfile.TemporaryDirectory(prefix="meds-replay-") as folder,
        closing(_ReplayedMemory(settings, Path(folder))) as memory,
    ):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for step in recording.steps():
                answered = memory.answer(step, summary)
                writer.write_table(answered.cast(schema))
        memory.count_clusters(summary)
    return summary


class _ReplayedMemory:
    """A single shard, created when the first features determine the number of layers."""

    def __init__(self, settings: MedsSettings, folder: Path) -> None:
        self._settings = settings
        self._paths = MemoryPaths(folder)
        self._shard: MemoryShard | None = None
        self._layers = 0
        self._step = 0  # own count, since the recording's step numbers only need to be non-decreasing

    def answer(self, step: RecordedStep, summary: ReplaySummary) -> pa.Table:
        """Return the step's table with the answer columns, and update the summary."""
        chosen = remembered_rows(step.correct[step.place], self._settings.memory.remember)
        place, features = step.place[chosen], step.features[chosen]
        labels = np.full(len(step.correct), UNASSIGNED, np.int64)
        sizes = np.zeros(len(step.correct), np.int64)
        if len(place):
            labels[place], sizes[place] = self._observe(step, place, features)
        penalty = self._settings.penalty
        penalties = cluster_penalty(sizes, alpha=penalty.alpha, beta=penalty.beta)
        summary.rows += len(labels)
        summary.remembered += len(place)
        summary.broken += step.broken
        summary.assigned += int((labels != UNASSIGNED).sum())
        summary.penalized += int((penalties > 0).sum())
        summary.penalty += float(penalties.sum())
        arrays = [pa.array(labels, mask=labels == UNASSIGNED), pa.array(sizes), pa.array(penalties.astype(np.float32))]
        table = step.table.select(_kept_names(step.table.schema))
        for field, array in zip(ANSWER_FIELDS, arrays):
            table = table.append_column(field, array)
        return table

    def count_clusters(self, summary: ReplaySummary) -> None:
        """Cluster the waiting groups and store the counts in the summary."""
        if self._shard is not None:
            self._shard.recluster()
            stats = self._shard.stats()
            summary.clusters, summary.noise = stats.clusters, stats.noise

    def close(self) -> None:
        """Release the folder."""
        if self._shard is not None:
            self._shard.close()

    def _observe(
        self, step: RecordedStep, place: NDArray[np.int64], features: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return labels and sizes (m,) of the rows ``place`` (m,) of a step."""
        rows = make_rows(place, [step.prompts[row] for row in place], step.correct[place], features)
        self._step += 1
        answer = self._shard_for(features.shape[1]).observe(self._step, rows)
        order = np.argsort(answer.sample)  # the answer is grouped by prompt, while ``place`` is ascending
        return answer.label[order], answer.size[order]

    def _shard_for(self, layers: int) -> MemoryShard:
        if self._shard is None:
            settings = ShardSettings(
                layers=layers,
                transform=transform_of(features_of_rows(self._settings.features, self._settings.memory), layers),
                method=method_of(self._settings.memory),
                fsync=False,
            )
            self._shard, self._layers = MemoryShard(self._paths, Sharding(0, 1), settings), layers
        if layers != self._layers:
            raise ConfigError("STREAM", layers, f"layers come after rows of {self._layers}; one model has one number")
        return self._shard


def _kept_names(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name not in ANSWER_COLUMNS]


def _answered_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*(schema.field(name) for name in _kept_names(schema)), *ANSWER_FIELDS])
