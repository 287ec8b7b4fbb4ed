"""Read-only access to a memory on disk, without a lock, so its run can continue.

Rows that a run stores meanwhile may or may not be visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import load_config
from meds_openrlhf.config.method import Method
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.branch import rows_by_step
from meds_openrlhf.memory.clustering import cluster_sets
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.history import History
from meds_openrlhf.memory.rows import layer_logits_of, log_schema, visits_of
from meds_openrlhf.memory.settings import settings_of_format
from meds_openrlhf.memory.snapshot import MemoryFormat, read_format
from meds_openrlhf.paths import MemoryPaths, RunPaths


@dataclass(frozen=True)
class LoadedRows:
    """All n rows of a memory, numbered and clustered as in ``history``; ``logits`` (n, N) are of all layers."""

    history: History
    step: NDArray[np.int32]  # (n,)
    sample: NDArray[np.int32]  # (n,)
    logits: NDArray[np.float32]


@dataclass(frozen=True)
class StoredMemory:
    """The files of one memory; ``run`` is the run that it belongs to, or None for a memory without a run."""

    paths: MemoryPaths
    format: MemoryFormat
    run: RunPaths | None

    @property
    def schema(self) -> pa.Schema:
        """The schema of its files."""
        return log_schema(self.format.layers)

    def settings(self, changed: Mapping[str, Any] | None = None) -> MedsSettings:
        """Return the run's settings; without a run, as far as the memory's format records them.

        ``changed`` are settings by full name, such as ``meds.memory.preset``, which take precedence. Raises ConfigError
        for an unknown setting.
        """
        changed = changed or {}
        if self.run is not None and self.run.config.exists():
            return load_config(self.run.config, changed).meds
        return settings_of_format(self.format, changed)

    def manifests(self) -> list[Path]:
        """Return the manifests of the snapshots, step 5 before step 10."""
        return sorted(self.paths.snapshots.glob("*.json"), key=lambda path: (len(path.stem), path.stem))

    def rows_by_step(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each step with rows and its rows from all shards, ordered by ``sample``.

        Raises MemoryCorruptionError if a file is damaged.
        """
        return rows_by_step(self.paths, self.format)

    def load(self, transform: FeatureTransform, method: Method) -> LoadedRows:
        """Read and cluster all rows. Raises MemoryCorruptionError if a file is damaged."""
        history = History(transform.dimensions(self.format.layers))
        batches = [rows for _, rows in self.rows_by_step()]
        logits = [np.empty((0, self.format.layers), np.float32), *map(layer_logits_of, batches)]
        for rows, of_step in zip(batches, logits[1:]):
            history.add(visits_of(rows), transform(of_step))
        selection = history.select(list(history.groups.values()))
        history.set_labels(selection, cluster_sets(history.features[selection.rows], selection.offsets, method))
        step, sample = (
            np.concatenate([np.empty(0, np.int32), *(rows.column(name).to_numpy() for rows in batches)])
            for name in ("step", "sample")
        )
        return LoadedRows(history, step, sample, np.concatenate(logits))


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
