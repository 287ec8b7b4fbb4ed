"""The features of many prompts at once, fetched from the segments and turned into vectors for clustering."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.presets import Method
from meds_openrlhf.memory.row_index import ALL, RowIndex, Selection, copy_rows
from meds_openrlhf.memory.stored_segment import StoredSegment


@dataclass(frozen=True)
class Window:
    """How much of a prompt's past counts: its newest ``rows`` of its newest ``visits``."""

    rows: int = ALL
    visits: int = ALL

    @staticmethod
    def of(method: Method) -> Window:
        """That of a method, in which None means all."""
        return Window(method.window_rows or ALL, method.window_visits or ALL)


class PromptFeatures:
    """Reads the rows that an index points at, out of the segments that it numbers."""

    def __init__(
        self, index: RowIndex, segments: list[StoredSegment], transform: FeatureTransform, layers: int
    ) -> None:
        self._index = index
        self._segments = segments
        self._transform = transform
        self._layers = layers

    def select(self, groups: NDArray[np.int64], window: Window) -> tuple[Selection, NDArray[np.float64]]:
        """The rows of ``groups`` inside the window, and their feature vectors (n, d), in the same order."""
        selection = self._index.select(groups, window.rows, window.visits)
        return selection, self._transform(self.logits(selection))

    def logits(self, selection: Selection) -> NDArray[np.float32]:
        """The (n, N) layer logits of a selection. Raises MemoryCorruptionError where a segment is damaged."""
        out = np.empty((len(selection.rows), self._layers), dtype=np.float32)
        visit_segments, offset = self._index.segment.array, self._index.offset.array
        ends = np.append(selection.starts[1:], len(selection.rows))
        of_visit = visit_segments[selection.visits]
        for number in np.unique(of_visit).tolist():
            source = self._segments[number].logits(offset[selection.visits[of_visit == number]])
            copy_rows(
                source, number, selection.visits, selection.skip, selection.starts, ends, visit_segments, offset, out
            )
        return out
