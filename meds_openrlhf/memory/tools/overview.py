"""Summarizes the contents of a memory and its biggest clusters, which are the most frequent errors."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.memory.clustering import NOISE
from meds_openrlhf.memory.columns import Selection
from meds_openrlhf.memory.settings import method_of, transform_of_rows
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

    ``clusters``, ``noise`` (rows in no cluster) and ``biggest`` (largest first) cover the rows inside the window.
    """

    prompts: int
    wrong: int
    right: int
    steps: int
    first_step: int | None
    last_step: int | None
    segments: int
    bytes: int
    snapshots: list[str]
    clusters: int
    noise: int
    biggest: list[ClusterFacts]


def survey(memory: StoredMemory, settings: MedsSettings, top: int = 10) -> Overview:
    """Cluster all prompts with ``settings`` and return a summary with the ``top`` biggest clusters.

    Raises ConfigError if the settings do not match the rows, and MemoryCorruptionError if a segment is damaged.
    """
    method, rows = method_of(settings.memory), memory.load(transform_of_rows(settings, memory.format))
    rows.cluster(method)
    columns = rows.columns
    wrong, right = columns.keys(False), columns.keys(True)
    verdicts = [False] * len(wrong) + [True] * len(right)
    groups = columns.find([*wrong, *right], verdicts)
    selection = columns.select(groups, method.window_rows, method.window_visits)
    facts = _facts([*zip([*wrong, *right], verdicts)], selection, rows)
    wrong_rows = len(columns.select(groups[: len(wrong)]).rows)
    files = [path for paths in memory.segment_files().values() for path in paths]
    steps = np.unique(rows.step).tolist()
    return Overview(
        prompts=columns.prompts,
        wrong=wrong_rows,
        right=len(columns) - wrong_rows,
        steps=len(steps),
        first_step=steps[0] if steps else None,
        last_step=steps[-1] if steps else None,
        segments=len(files),
        bytes=sum(path.stat().st_size for path in files),
        snapshots=[path.stem for path in memory.manifests()],
        clusters=columns.total_clusters,
        noise=columns.total_noise,
        biggest=heapq.nlargest(top, facts, key=lambda cluster: cluster.size),
    )


def _facts(groups: list[tuple[str, bool]], selection: Selection, rows: LoadedRows) -> Iterator[ClusterFacts]:
    """Yield the clusters of ``groups``, whose rows are ``selection``."""
    for (prompt, correct), begin, end in zip(groups, selection.offsets[:-1], selection.offsets[1:]):
        places = selection.rows[begin:end]
        labels, steps = rows.columns.labels[places], rows.step[places]
        for label in range(labels.max(initial=NOISE) + 1):
            seen = steps[labels == label]
            yield ClusterFacts(prompt, correct, len(seen), len(seen) / len(places), int(seen.min()), int(seen.max()))
