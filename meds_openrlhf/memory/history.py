"""The rows of one shard in RAM: features and labels by row number, and the row numbers of each group.

A group is all rows of one prompt with one verdict. Rows are numbered in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.method import Method
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.clustering import cluster_sets

Key = tuple[str, bool]  # prompt, and whether the rollouts were right


class Column:
    """A growing array; ``array`` (length, ...) is a view of the rows so far, which `extend` leaves unchanged."""

    def __init__(self, dtype: Any, *width: int) -> None:
        self._storage = np.empty((16, *width), dtype)
        self.array: NDArray[Any] = self._storage[:0]

    def extend(self, values: NDArray[Any]) -> None:
        """Append values."""
        begin, end = len(self.array), len(self.array) + len(values)
        if end > len(self._storage):
            self._storage = np.empty((max(end, 2 * begin), *self._storage.shape[1:]), self._storage.dtype)
            self._storage[:begin] = self.array
        self._storage[begin:end] = values
        self.array = self._storage[:end]


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
    """The groups of one shard, with features of ``dimensions`` values."""

    def __init__(self, dimensions: int) -> None:
        self.groups: dict[Key, Group] = {}
        self.prompts = 0  # number of prompts with rows
        self.clusters = self.noise = 0  # totals over the groups
        self.stale: dict[Group, None] = {}  # groups with rows newer than their last clustering, in order of waiting
        self._features = Column(np.float64, dimensions)
        self._labels = Column(np.int32)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def features(self) -> NDArray[np.float64]:
        """The vectors (n, d) to cluster."""
        return self._features.array

    @property
    def labels(self) -> NDArray[np.int32]:
        """The labels (n,) of all rows as of the last clustering of their group; UNASSIGNED before."""
        return self._labels.array

    def add(self, visits: Sequence[tuple[Key, int]], features: NDArray[np.float64]) -> None:
        """Append ``features`` (n, d), the rows of the visits in their order; a visit is a key and a number of rows."""
        begin = len(self)
        self._features.extend(features)
        self._labels.extend(np.full(len(features), UNASSIGNED, np.int32))
        for key, count in visits:
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

    def cluster(self, groups: Sequence[Group], method: Method) -> None:
        """Cluster those of ``groups`` that wait."""
        selection = self.select([group for group in groups if group in self.stale])
        self.set_labels(selection, cluster_sets(self.features[selection.rows], selection.offsets, method))

    def set_labels(self, selection: Selection, labels: NDArray[np.int32]) -> None:
        """Store the clustering (n,) of a selection. A group that got rows meanwhile keeps its labels and waits."""
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
