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
    """The groups of one shard, with features of ``dimensions`` values."""

    def __init__(self, dimensions: int) -> None:
        self.groups: dict[Key, Group] = {}
        self.prompts = 0  # number of prompts with rows
        self.clusters = self.noise = 0  # totals over the groups
        self.stale: dict[Group, None] = {}  # groups with rows newer than their last clustering, oldest first
        self.features = np.empty((0, dimensions))  # (n, d) to cluster
        self.labels = np.empty(0, np.int32)  # (n,) from the last clustering of a row's group; UNASSIGNED before it

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, visits: Sequence[tuple[Key, int]], features: NDArray[np.float64]) -> None:
        """Append ``features`` (n, d), the rows of the visits in their order; a visit is a key and a number of rows."""
        begin = len(self)
        self.features = extended(self.features, features)
        self.labels = extended(self.labels, np.full(len(features), UNASSIGNED, np.int32))
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
