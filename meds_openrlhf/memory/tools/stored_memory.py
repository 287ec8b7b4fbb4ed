"""Read-only access to a memory on disk, without a lock, so its run can continue.

Rows that a run appends meanwhile may or may not be visible; a partially written batch is not visible.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import as_word, load_config
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.columns import Column, Columns
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.presets import Method
from meds_openrlhf.memory.rows import layer_logits_of, log_schema, visits_of
from meds_openrlhf.memory.segment import read_batches, step_of
from meds_openrlhf.memory.settings import settings_of_format
from meds_openrlhf.memory.snapshot import MemoryFormat, read_format
from meds_openrlhf.paths import MemoryPaths, RunPaths, segments_in

GROUPS_AT_ONCE = 64  # groups whose features are copied at the same time


@dataclass(frozen=True)
class LoadedRows:
    """All n rows of a memory, numbered as in ``columns``; ``logits`` (n, N) are of all layers."""

    columns: Columns
    step: NDArray[np.int32]  # (n,)
    sample: NDArray[np.int32]  # (n,)
    logits: NDArray[np.float32]

    def cluster(self, method: Method) -> None:
        """Label the rows of every group; rows outside the method's window stay UNASSIGNED."""
        columns = self.columns
        for groups in np.array_split(columns.groups, range(GROUPS_AT_ONCE, len(columns.groups), GROUPS_AT_ONCE)):
            selection = columns.select(groups, method.window_rows, method.window_visits)
            features = columns.features[selection.rows]
            columns.set_labels(selection, cluster_sets(features, selection.offsets, method.clustering))


@dataclass(frozen=True)
class StoredMemory:
    """The files of one memory; ``run`` is the run that it belongs to, or None for a memory without a run."""

    paths: MemoryPaths
    format: MemoryFormat
    run: RunPaths | None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the segments."""
        return log_schema(self.format.layers)

    def settings(self, changed: Mapping[str, Any] | None = None) -> MedsSettings:
        """Return the run's settings; without a run, as far as the memory's format records them.

        ``changed`` are settings by full name, such as ``meds.memory.preset``, which take precedence. Raises ConfigError
        for an unknown setting.
        """
        changed = changed or {}
        if self.run is not None and self.run.config.exists():
            words = [f"--{name}={as_word(value)}" for name, value in changed.items()]
            return load_config(self.run.config, words).meds
        return settings_of_format(self.format, changed)

    def segment_files(self) -> dict[int, list[Path]]:
        """Return the segments in every shard's folder, oldest first, by the shard's number."""
        return {number: segments_in(folder) for number, folder in sorted(self.paths.shard_folders().items())}

    def manifests(self) -> list[Path]:
        """Return the manifests of the snapshots, step 5 before step 10."""
        return sorted(self.paths.snapshots.glob("*.json"), key=lambda path: (len(path.stem), path.stem))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield every batch of the log, oldest step first; batches of one step are ordered by shard number.

        Raises MemoryCorruptionError if a batch is damaged.
        """
        return heapq.merge(*map(self._batches_of, self.segment_files().values()), key=step_of)

    def rows_by_step(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each step with rows and its rows from all shards, ordered by ``sample``.

        Raises MemoryCorruptionError if a batch is damaged.
        """
        for step, batches in groupby(self.batches(), key=step_of):
            rows = pa.concat_batches(list(batches))
            order = np.argsort(rows.column("sample").to_numpy(), kind="stable")
            yield step, rows.take(pa.array(order))

    def load(self, transform: FeatureTransform) -> LoadedRows:
        """Read all rows. Raises MemoryCorruptionError if a batch is damaged."""
        columns = Columns(transform.dimensions(self.format.layers))
        logits = Column(np.float32, width=(self.format.layers,))
        step, sample = Column(np.int32), Column(np.int32)
        for batch in self.batches():
            rows = layer_logits_of(batch)
            columns.add(*visits_of(batch), transform(rows))
            logits.extend(rows)
            step.extend(batch.column("step").to_numpy())
            sample.extend(batch.column("sample").to_numpy())
        return LoadedRows(columns, step.array, sample.array, logits.array)

    def _batches_of(self, paths: list[Path]) -> Iterator[pa.RecordBatch]:
        for path in paths:
            with suppress(FileNotFoundError):  # the run has just removed it
                for batch, _ in read_batches(path, self.schema):
                    yield batch


def open_memory(folder: Path) -> StoredMemory:
    """Open the memory in ``folder``, which is the folder of a run or of a memory.

    Raises ConfigError if there is no memory or it has another format version, and MemoryCorruptionError if its format
    cannot be read.
    """
    paths = MemoryPaths(folder) if MemoryPaths(folder).format.exists() else RunPaths(folder).memory
    memory_format = read_format(paths)
    if memory_format is None:
        problem = "holds no memory" if folder.exists() else "does not exist"
        raise ConfigError(
            "RUN", str(folder), f"{problem}; name a run's folder, or a memory's (the one with format.json)"
        )
    if memory_format.layers < 1:
        raise MemoryCorruptionError(f"{paths.format}: gives {memory_format.layers!r} as the number of layers")
    run = RunPaths(paths.root.absolute().parent)
    belongs = run.memory.root.name == paths.root.name and (run.config.exists() or run.lock.exists())
    return StoredMemory(paths, memory_format, run if belongs else None)
