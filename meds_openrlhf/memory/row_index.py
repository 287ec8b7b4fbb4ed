"""Where the rows of each group are, and their labels, in flat arrays; the rows themselves stay in the segments.

A group is one prompt's rows of one verdict. Its visits (runs of rows in one batch) are chained from the newest back, so
that a group costs no object of its own beside its key: about 40 bytes per visit, 4 per row, and the key.
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
    """A growing one-dimensional array; ``array`` (length,) is a view that a later `extend` may leave behind."""

    def __init__(self, dtype: Any, fill: int) -> None:
        self._storage = np.full(16, fill, dtype)
        self._fill = fill
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> NDArray[Any]:
        """Everything so far."""
        return self._storage[: self._length]

    def extend(self, values: NDArray[Any]) -> None:
        """Add values at the end."""
        self.grow(self._length + len(values))
        self.array[self._length - len(values) :] = values

    def grow(self, length: int) -> None:
        """Make it ``length`` long, new places holding the fill value."""
        if length > len(self._storage):
            larger = np.full(max(length, 2 * len(self._storage)), self._fill, self._storage.dtype)
            larger[: self._length] = self._storage[: self._length]
            self._storage = larger
        self._length = length


@dataclass(frozen=True)
class Selection:
    """The rows of some groups, oldest first within each: group i's are ``offsets[i]:offsets[i + 1]`` of ``rows`` (n,).

    ``visits`` (v,), with ``skip`` (v,) rows left out at their beginning and ``starts`` (v,), their place in ``rows``,
    say where to fetch them.
    """

    groups: NDArray[np.int64]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]
    visits: NDArray[np.int64]
    skip: NDArray[np.int64]
    starts: NDArray[np.int64]


class RowIndex:
    """Groups, visits and labels of one shard. Rows are numbered in the order in which they came."""

    def __init__(self) -> None:
        self._ids: tuple[dict[str, int], dict[str, int]] = ({}, {})  # of wrong and of right rollouts
        self._queue: deque[NDArray[np.int64]] = deque()  # groups that came to be owed a clustering, oldest first
        self.prompts = 0  # that have rows
        self.total_clusters = self.total_noise = 0
        self.newest = Column(np.int32, NONE)  # per group: its last visit
        self.clusters = Column(np.int32, 0)  # per group, as of its last clustering
        self.noise = Column(np.int32, 0)
        self.owed = Column(np.bool_, False)  # per group: rows came that no clustering has seen
        self.previous = Column(np.int32, NONE)  # per visit: the group's visit before
        self.segment = Column(np.int32, NONE)
        self.offset = Column(np.int64, 0)  # per visit: where its logits begin in the segment, in float32s
        self.count = Column(np.int32, 0)
        self.first_row = Column(np.int64, 0)
        self.labels = Column(np.int32, UNASSIGNED)  # per row, as of its group's last clustering

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.labels)

    def find(self, prompts: list[str], correct: list[bool]) -> NDArray[np.int64]:
        """Group numbers (g,), NONE for one that has no rows yet."""
        ids = [self._ids[right].get(prompt, NONE) for prompt, right in zip(prompts, correct)]
        return np.array(ids, dtype=np.int64)

    def keys(self, correct: bool) -> list[str]:
        """The prompts that have rows of this verdict."""
        return list(self._ids[correct])

    def add(
        self,
        prompts: list[str],
        correct: list[bool],
        segment: int,
        offset: NDArray[np.int64],
        count: NDArray[np.int32],
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """Take in visits, the newest so far, in their order; their groups are owed a clustering.

        ``groups`` (v,) are what `find` says of them, where the caller knows that already.
        """
        groups = self.find(prompts, correct) if groups is None else groups
        for place in np.flatnonzero(groups == NONE).tolist():
            groups[place] = self._number(prompts[place], correct[place])
        for column in (self.newest, self.clusters, self.noise, self.owed):
            column.grow(len(self._ids[0]) + len(self._ids[1]))
        before = len(self.count)
        self.previous.grow(before + len(groups))
        _chain(groups, before, self.newest.array, self.previous.array)
        self.segment.extend(np.full(len(groups), segment, np.int32))
        self.offset.extend(offset)
        self.count.extend(count)
        ends = self.rows + np.cumsum(count, dtype=np.int64)
        self.first_row.extend(ends - count)
        self.labels.grow(int(ends[-1]) if len(ends) else self.rows)
        self.owed.array[groups] = True
        self._queue.append(groups)

    def next_owed(self, most: int) -> NDArray[np.int64]:
        """Up to ``most`` groups that are owed a clustering, none of them given out before; empty for none."""
        while self._queue:
            groups, rest = self._queue[0][:most], self._queue[0][most:]
            self._queue[0] = rest
            if len(rest) == 0:
                self._queue.popleft()
            owed = np.unique(groups[self.owed.array[groups]])
            if len(owed):
                return owed
        return np.empty(0, dtype=np.int64)

    def _number(self, prompt: str, right: bool) -> int:
        """A group's number; a new group gets the next one."""
        ids = self._ids[right]
        if prompt not in ids:
            self.prompts += prompt not in self._ids[not right]
            ids[prompt] = len(self._ids[0]) + len(self._ids[1])
        return ids[prompt]

    def select(self, groups: NDArray[np.int64], max_rows: int = ALL, max_visits: int = ALL) -> Selection:
        """The newest ``max_rows`` rows of the newest ``max_visits`` visits of each group; NONE has no rows."""
        newest, previous, count = self.newest.array, self.previous.array, self.count.array
        sizes, visits = _measure(groups, newest, previous, count, max_rows, max_visits)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        parts = _collect(groups, newest, previous, count, self.first_row.array, offsets, visits)
        return Selection(groups, offsets, *parts)

    def set_labels(self, selection: Selection, labels: NDArray[np.int32]) -> None:
        """Keep the clustering of ``selection``; a group that got rows since it was selected is owed one (again)."""
        self.labels.array[selection.rows] = labels
        clusters, noise, unchanged = _tally(
            selection.groups, selection.offsets, labels, selection.rows, self.newest.array,
            self.first_row.array, self.count.array,
        )  # fmt: skip
        self.total_clusters += int(clusters.sum() - self.clusters.array[selection.groups].sum())
        self.total_noise += int(noise.sum() - self.noise.array[selection.groups].sum())
        self.clusters.array[selection.groups] = clusters
        self.noise.array[selection.groups] = noise
        self.owed.array[selection.groups] = ~unchanged


@compiled
def _chain(groups: Any, first_visit: Any, newest: Any, previous: Any) -> None:
    for place in range(len(groups)):
        previous[first_visit + place] = newest[groups[place]]
        newest[groups[place]] = first_visit + place


@compiled
def _measure(groups: Any, newest: Any, previous: Any, count: Any, max_rows: Any, max_visits: Any) -> Any:
    """Rows (g,) and visits (g,) of each group inside the window."""
    sizes, visits = np.zeros(len(groups), np.int64), np.zeros(len(groups), np.int64)
    for place in range(len(groups)):
        visit = newest[groups[place]] if groups[place] != NONE else NONE
        while visit != NONE and sizes[place] < max_rows and visits[place] < max_visits:
            sizes[place] = min(sizes[place] + count[visit], max_rows)
            visits[place] += 1
            visit = previous[visit]
    return sizes, visits


@compiled
def _collect(
    groups: Any, newest: Any, previous: Any, count: Any, first_row: Any, offsets: Any, visits_per_group: Any
) -> Any:
    rows = np.empty(offsets[-1], np.int64)
    total = visits_per_group.sum()
    visits, skip, starts = np.empty(total, np.int64), np.zeros(total, np.int64), np.empty(total, np.int64)
    end_of_visits = 0
    for place in range(len(groups)):
        if visits_per_group[place] == 0:  # as of every group that does not exist
            continue
        end_of_visits += visits_per_group[place]
        visit, position = newest[groups[place]], offsets[place + 1]
        for back in range(visits_per_group[place]):
            kept = min(count[visit], position - offsets[place])
            position -= kept
            slot = end_of_visits - 1 - back
            visits[slot], skip[slot], starts[slot] = visit, count[visit] - kept, position
            for row in range(kept):
                rows[position + row] = first_row[visit] + count[visit] - kept + row
            visit = previous[visit]
    return rows, visits, skip, starts


@compiled
def _tally(groups: Any, offsets: Any, labels: Any, rows: Any, newest: Any, first_row: Any, count: Any) -> Any:
    """Per group: clusters, noise, and whether its newest row is among ``rows``, so that nothing came since."""
    clusters, noise = np.zeros(len(groups), np.int32), np.zeros(len(groups), np.int32)
    unchanged = np.zeros(len(groups), np.bool_)
    for place in range(len(groups)):
        for row in range(offsets[place], offsets[place + 1]):
            clusters[place] = max(clusters[place], labels[row] + 1)
            noise[place] += labels[row] == -1
        visit = newest[groups[place]]
        last = first_row[visit] + count[visit] - 1
        unchanged[place] = offsets[place + 1] > offsets[place] and rows[offsets[place + 1] - 1] == last
    return clusters, noise, unchanged


@compiled
def copy_rows(
    source: Any, segment: Any, selection_visits: Any, skip: Any, starts: Any, ends: Any, segments: Any, offset: Any,
    out: Any,
) -> None:  # fmt: skip
    """Copy those rows of a selection that lie in ``segment``, whose float32s are ``source``, into ``out`` (n, N)."""
    layers = out.shape[1]
    for place in range(len(selection_visits)):
        visit = selection_visits[place]
        if segments[visit] != segment:
            continue
        begin = offset[visit] + skip[place] * layers
        for row in range(starts[place], ends[place]):
            for layer in range(layers):
                out[row, layer] = source[begin + layer]
            begin += layers
