"""Summarizes the contents of a memory and its biggest clusters, which are the most frequent errors."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.memory.settings import transform_of_rows
from meds_openrlhf.memory.tools.stored_memory import LoadedRows, StoredMemory


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster: ``size`` rows, their ``share`` of the prompt's rows with that verdict, its first and last step."""

    prompt: str
    correct: bool
    size: int
    share: float
    first_step: int
    last_step: int


@dataclass(frozen=True)
class Overview:
    """The contents of a memory. ``steps`` counts steps with rows; without rows the first and last step are None.

    ``noise``: rows in no cluster; ``biggest``: the largest clusters first.
    """

    prompts: int
    wrong: int
    right: int
    steps: int
    first_step: int | None
    last_step: int | None
    files: int
    bytes: int
    snapshots: list[str]
    clusters: int
    noise: int
    biggest: list[ClusterFacts]


def survey(memory: StoredMemory, settings: MedsSettings, top: int = 10) -> Overview:
    """Cluster all prompts with ``settings`` and return a summary with the ``top`` biggest clusters.

    Raises ConfigError if the settings do not match the rows, and MemoryCorruptionError if a file is damaged.
    """
    rows = memory.load(transform_of_rows(settings, memory.format), settings.memory.method)
    history = rows.history
    wrong = sum(len(group.rows) for (_, correct), group in history.groups.items() if not correct)
    files = [file for folder in memory.paths.shard_folders().values() for file in folder.glob("*.arrow")]
    steps = np.unique(rows.step).tolist()
    return Overview(
        prompts=history.prompts,
        wrong=wrong,
        right=len(history) - wrong,
        steps=len(steps),
        first_step=steps[0] if steps else None,
        last_step=steps[-1] if steps else None,
        files=len(files),
        bytes=sum(file.stat().st_size for file in files),
        snapshots=[path.stem for path in memory.manifests()],
        clusters=history.clusters,
        noise=history.noise,
        biggest=heapq.nlargest(top, _facts(rows), key=lambda cluster: cluster.size),
    )


def _facts(rows: LoadedRows) -> Iterator[ClusterFacts]:
    """Yield all clusters."""
    for (prompt, correct), group in rows.history.groups.items():
        labels, steps = rows.history.labels[group.rows], rows.step[group.rows]
        for label in range(group.clusters):
            seen = steps[labels == label]
            yield ClusterFacts(prompt, correct, len(seen), len(seen) / len(labels), int(seen.min()), int(seen.max()))
