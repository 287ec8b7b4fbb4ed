"""What a memory holds, in numbers, and its biggest clusters: the errors that come back most."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import NOISE, cluster_sets
from meds_openrlhf.memory.presets import Method
from meds_openrlhf.memory.prompt_features import PromptFeatures, Window
from meds_openrlhf.memory.row_index import Selection
from meds_openrlhf.memory.stored_segment import StoredSegment, index_of
from meds_openrlhf.memory.tools.stored_memory import StoredMemory

GROUPS_AT_ONCE = 64  # whose features are held in memory together


@dataclass(frozen=True)
class ClusterFacts:
    """One cluster: ``size`` rows, a ``share`` of its prompt's rows of that verdict, seen from step to step."""

    prompt: str
    correct: bool
    size: int
    share: float
    first_step: int
    last_step: int


@dataclass(frozen=True)
class Overview:
    """What a memory holds. ``steps`` counts those that stored rows; with no rows the first and last step are None.

    ``clusters``, ``noise`` (rows in none) and ``biggest`` (by size, largest first) are of the rows inside the window.
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
    """Cluster all prompts as ``method`` says and sum up; ``top`` clusters are named.

    Raises MemoryCorruptionError where a segment is damaged.
    """
    segments = memory.segments()
    rows = _Rows(segments, transform, memory.format.layers)
    clusters, noise = 0, 0
    biggest: list[ClusterFacts] = []
    for found, outside in rows.clustered(method):
        clusters, noise = clusters + len(found), noise + outside
        biggest = heapq.nlargest(top, [*biggest, *found], key=lambda one: one.size)
    verdicts = np.array([right for one in segments for right in one.index.correct], dtype=bool)
    counts = np.array([count for one in segments for count in one.index.visits["count"]], dtype=np.int64)
    steps = sorted({entry.step for one in segments for entry in one.index.batches})
    return Overview(
        prompts=rows.index.prompts,
        wrong=int(counts[~verdicts].sum()),
        right=int(counts[verdicts].sum()),
        steps=len(steps),
        first_step=steps[0] if steps else None,
        last_step=steps[-1] if steps else None,
        segments=len(segments),
        bytes=sum(one.index.bytes for one in segments),
        snapshots=[path.stem for path in memory.manifests()],
        clusters=clusters,
        noise=noise,
        biggest=biggest,
    )


class _Rows:
    """The rows of all segments by prompt and verdict, each with its step."""

    def __init__(self, segments: list[StoredSegment], transform: FeatureTransform, layers: int) -> None:
        self.index = index_of(segments)
        self._features = PromptFeatures(self.index, segments, transform, layers)
        steps = [one.index.batches[batch].step for one in segments for batch in one.index.visits["batch"]]
        self._steps = np.array(steps, dtype=np.int64)  # per visit

    def clustered(self, method: Method) -> Iterator[tuple[list[ClusterFacts], int]]:
        """Some prompts' clusters and rows of noise at a time."""
        window = Window.of(method)
        groups = [(prompt, correct) for correct in (False, True) for prompt in self.index.keys(correct)]
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            some = groups[start : start + GROUPS_AT_ONCE]
            numbers = self.index.find([prompt for prompt, _ in some], [correct for _, correct in some])
            selection, features = self._features.select(numbers, window)
            labels = cluster_sets(features, selection.offsets, method.clustering)
            yield self._facts(some, selection, labels), int((labels == NOISE).sum())

    def _facts(
        self, groups: list[tuple[str, bool]], selection: Selection, labels: NDArray[np.int32]
    ) -> list[ClusterFacts]:
        lengths = np.diff(np.append(selection.starts, len(selection.rows)))
        steps = np.repeat(self._steps[selection.visits], lengths)  # per row
        facts = []
        for (prompt, correct), begin, end in zip(groups, selection.offsets[:-1], selection.offsets[1:]):
            of_group = labels[begin:end]
            for label in range(of_group.max(initial=NOISE) + 1):
                seen = steps[begin:end][of_group == label]
                share = len(seen) / len(of_group)
                facts.append(ClusterFacts(prompt, correct, len(seen), share, int(seen.min()), int(seen.max())))
        return facts
