"""The rows of one shard in RAM, in flat growing columns: feature vectors, labels, and positions of each group's rows.

A group is all rows of one prompt with one verdict. Rows are numbered in order of arrival. The rows that a group gets in
one step are a visit. The visits of a group form a chain from the newest to the oldest, so the key is the only Python
object that a group needs. docs/benchmarks.md lists the bytes per row.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.memory.compiled import compiled

NONE = -1
ALL = np.iinfo(np.int64).max


class Column:
    """A growing array of rows; ``array`` (length, ...) is a view that the next `extend` may invalidate."""

    def __init__(self, dtype: Any, fill: int = 0, width: tuple[int, ...] = ()) -> None:
        self._storage = np.empty((16, *width), dtype)
        self._fill = fill
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> NDArray[Any]:
        """A view of all values."""
        return self._storage[: self._length]

    def extend(self, values: NDArray[Any]) -> None:
        """Append values."""
        begin, self._length = self._length, self._length + len(values)
        if self._length > len(self._storage):
            # Not filled: the operating system allocates a page only when it is first written.
            larger = np.empty((max(self._length, 2 * len(self._storage)), *values.shape[1:]), self._storage.dtype)
            larger[:begin] = self._storage[:begin]
            self._storage = larger
        self.array[begin:] = values

    def grow(self, length: int) -> None:
        """Grow to ``length`` values; new values are set to the fill value."""
        self.extend(np.full(length - self._length, self._fill))


@dataclass(frozen=True)
class Selection:
    """Rows (n,) of some ``groups`` (g,), oldest first: group i has ``rows[offsets[i]:offsets[i + 1]]``."""

    groups: NDArray[np.int64]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]


class Columns:
    """Groups, visits and rows of one shard, with features of ``dimensions`` values."""

    def __init__(self, dimensions: int) -> None:
        self._groups: tuple[dict[str, int], dict[str, int]] = ({}, {})  # numbers by prompt, of wrong and right rollouts
        self._queue: deque[NDArray[np.int64]] = deque()  # groups that wait to be clustered, oldest first
        self.prompts = 0  # number of prompts with rows
        self.total_clusters = self.total_noise = 0
        # per group
        self._newest = Column(np.int32, NONE)  # the group's last visit
        self._clusters = Column(np.int32)  # as of the group's last clustering, like the noise count
        self._noise = Column(np.int32)
        self.owed = Column(np.bool_)  # the group has rows newer than its last clustering
        # per visit
        self._previous = Column(np.int32, NONE)  # the group's previous visit
        self._count = Column(np.int32)
        self._first_row = Column(np.int64)
        # per row
        self._features = Column(np.float64, width=(dimensions,))
        self._labels = Column(np.int32, UNASSIGNED)  # as of the group's last clustering

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def groups(self) -> NDArray[np.int64]:
        """The numbers of all groups."""
        return np.arange(len(self.owed))

    @property
    def features(self) -> NDArray[np.float64]:
        """The vectors (n, d) to cluster. Rows are appended and never changed, so a view stays valid."""
        return self._features.array

    @property
    def labels(self) -> NDArray[np.int32]:
        """The labels (n,) of all rows, as of the last clustering of each row's group."""
        return self._labels.array

    def find(self, prompts: list[str], correct: list[bool]) -> NDArray[np.int64]:
        """Return group numbers (g,), NONE for groups without rows."""
        found = [self._groups[right].get(prompt, NONE) for prompt, right in zip(prompts, correct)]
        return np.array(found, dtype=np.int64)

    def keys(self, correct: bool) -> list[str]:
        """Return the prompts that have rows with this verdict."""
        return list(self._groups[correct])

    def add(
        self,
        prompts: list[str],
        correct: list[bool],
        count: NDArray[np.int32],
        features: NDArray[np.float64],
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """Append one step's visits, visit i with ``count[i]`` rows of ``features``, and queue their groups.

        ``groups`` (v,) is the result of `find` for the visits, if the caller has it.
        """
        groups = self.find(prompts, correct) if groups is None else groups
        for place in np.flatnonzero(groups == NONE).tolist():
            groups[place] = self._number(prompts[place], correct[place])
        for column in (self._newest, self._clusters, self._noise, self.owed):
            column.grow(len(self._groups[0]) + len(self._groups[1]))
        before = len(self._count)
        self._previous.grow(before + len(groups))
        _chain(groups, before, self._newest.array, self._previous.array)
        self._count.extend(count)
        self._first_row.extend(len(self) + np.cumsum(count, dtype=np.int64) - count)
        self._labels.grow(len(self) + len(features))
        self._features.extend(features)
        self.owed.array[groups] = True
        self._queue.append(groups)

    def next_owed(self, most: int) -> NDArray[np.int64]:
        """Dequeue up to ``most`` groups that wait to be clustered; empty if there are none."""
        while self._queue:
            groups, rest = self._queue[0][:most], self._queue[0][most:]
            self._queue[0] = rest
            if len(rest) == 0:
                self._queue.popleft()
            owed = np.unique(groups[self.owed.array[groups]])
            if len(owed):
                return owed
        return np.empty(0, dtype=np.int64)

    def select(
        self, groups: NDArray[np.int64], max_rows: int | None = None, max_visits: int | None = None
    ) -> Selection:
        """Select the newest ``max_rows`` rows of the newest ``max_visits`` visits of each group; None means no limit.

        A group NONE has no rows.
        """
        chain = self._newest.array, self._previous.array, self._count.array
        sizes = _measure(
            groups, *chain, ALL if max_rows is None else max_rows, ALL if max_visits is None else max_visits
        )
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return Selection(groups, offsets, _collect(groups, *chain, self._first_row.array, offsets))

    def set_labels(self, selection: Selection, labels: NDArray[np.int32]) -> None:
        """Store the clustering of a selection. Groups that got rows meanwhile keep their old labels and stay queued."""
        clusters, noise = _set_labels(
            *(selection.groups, selection.offsets, selection.rows, labels),
            *(self._newest.array, self._first_row.array, self._count.array),
            *(self._labels.array, self._clusters.array, self._noise.array, self.owed.array),
        )
        self.total_clusters += int(clusters)
        self.total_noise += int(noise)

    def _number(self, prompt: str, right: bool) -> int:
        """Return a group's number; a new group gets the next free number."""
        numbers = self._groups[right]
        if prompt not in numbers:
            self.prompts += prompt not in self._groups[not right]
            numbers[prompt] = len(self._groups[0]) + len(self._groups[1])
        return numbers[prompt]


@compiled
def _chain(groups: Any, first_visit: Any, newest: Any, previous: Any) -> None:
    for place in range(len(groups)):
        previous[first_visit + place] = newest[groups[place]]
        newest[groups[place]] = first_visit + place


@compiled
def _measure(groups: Any, newest: Any, previous: Any, count: Any, max_rows: Any, max_visits: Any) -> Any:
    """Return how many rows (g,) of each group are inside the window."""
    sizes = np.zeros(len(groups), np.int64)
    for place in range(len(groups)):
        visits = 0
        visit = newest[groups[place]] if groups[place] != NONE else NONE
        while visit != NONE and sizes[place] < max_rows and visits < max_visits:
            sizes[place] = min(sizes[place] + count[visit], max_rows)
            visits += 1
            visit = previous[visit]
    return sizes


@compiled
def _collect(groups: Any, newest: Any, previous: Any, count: Any, first_row: Any, offsets: Any) -> Any:
    """Return the numbers (n,) of the newest rows of each group, as many as its offsets leave room for."""
    rows = np.empty(offsets[-1], np.int64)
    for place in range(len(groups)):
        position = offsets[place + 1]
        visit = newest[groups[place]] if position > offsets[place] else NONE
        while position > offsets[place]:
            kept = min(count[visit], position - offsets[place])
            position -= kept
            for row in range(kept):
                rows[position + row] = first_row[visit] + count[visit] - kept + row
            visit = previous[visit]
    return rows


@compiled
def _set_labels(
    groups: Any, offsets: Any, rows: Any, labels: Any, newest: Any, first_row: Any, count: Any,
    all_labels: Any, all_clusters: Any, all_noise: Any, owed: Any,
) -> Any:  # fmt: skip
    """Write labels and counts of the groups whose newest row is in ``rows``; return the changes of the two totals."""
    more_clusters, more_noise = 0, 0
    for place in range(len(groups)):
        group, begin, end = groups[place], offsets[place], offsets[place + 1]
        if end == begin or rows[end - 1] != first_row[newest[group]] + count[newest[group]] - 1:
            continue
        clusters, noise = 0, 0
        for row in range(begin, end):
            all_labels[rows[row]] = labels[row]
            clusters = max(clusters, labels[row] + 1)
            noise += labels[row] == -1
        more_clusters += clusters - all_clusters[group]
        more_noise += noise - all_noise[group]
        all_clusters[group], all_noise[group], owed[group] = clusters, noise, False
    return more_clusters, more_noise
