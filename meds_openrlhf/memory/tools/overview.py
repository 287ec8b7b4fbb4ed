"""Summarizes the contents of a memory and its biggest clusters, which are the most frequent errors."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import NOISE, cluster_sets
from meds_openrlhf.memory.columns import Selection
from meds_openrlhf.memory.presets import Method
from meds_openrlhf.memory.tools.stored_memory import LoadedRows, StoredMemory

GROUPS_AT_ONCE = 64  # groups whose features are in RAM at the same time


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


def survey(memory: StoredMemory, method: Method, transform: FeatureTransform, top: int = 10) -> Overview:
    """Cluster all prompts with ``method`` and return a summary with the ``top`` biggest clusters.

    Raises MemoryCorruptionError if a segment is damaged.
    """
    rows = memory.load(transform)
    columns = rows.columns
    groups = [(prompt, correct) for correct in (False, True) for prompt in columns.keys(correct)]
    biggest: list[ClusterFacts] = []
    wrong = 0
    for start in range(0, len(groups), GROUPS_AT_ONCE):
        some = groups[start : start + GROUPS_AT_ONCE]
        numbers = columns.find([prompt for prompt, _ in some], [correct for _, correct in some])
        selection = columns.select(numbers, method.window_rows, method.window_visits)
        columns.set_labels(
            selection, cluster_sets(columns.features[selection.rows], selection.offsets, method.clustering)
        )
        biggest = heapq.nlargest(top, [*biggest, *_facts(some, selection, rows)], key=lambda one: one.size)
        wrong += len(columns.select(numbers[[not correct for _, correct in some]]).rows)
    files = [path for paths in memory.segment_files().values() for path in paths]
    steps = np.unique(rows.step).tolist()
    return Overview(
        prompts=columns.prompts,
        wrong=wrong,
        right=len(columns) - wrong,
        steps=len(steps),
        first_step=steps[0] if steps else None,
        last_step=steps[-1] if steps else None,
        segments=len(files),
        bytes=sum(path.stat().st_size for path in files),
        snapshots=[path.stem for path in memory.manifests()],
        clusters=columns.total_clusters,
        noise=columns.total_noise,
        biggest=biggest,
    )


def _facts(groups: list[tuple[str, bool]], selection: Selection, rows: LoadedRows) -> Iterator[ClusterFacts]:
    """Yield the clusters of ``groups``, whose rows are ``selection``."""
    for (prompt, correct), begin, end in zip(groups, selection.offsets[:-1], selection.offsets[1:]):
        own = selection.rows[begin:end]
        labels, steps = rows.columns.labels[own], rows.step[own]
        for label in range(labels.max(initial=NOISE) + 1):
            seen = steps[labels == label]
            yield ClusterFacts(prompt, correct, len(seen), len(seen) / len(own), int(seen.min()), int(seen.max()))
