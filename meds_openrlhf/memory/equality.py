"""The simplest clusters: rows that are equal. A memory of final answers goes by them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.linkage import NOISE

Labels = NDArray[np.int32]


def cluster_equal(features: NDArray[np.float64], offsets: NDArray[np.int64]) -> Labels:
    """Labels (n,) int32: in each set, rows ``offsets[i]`` to ``offsets[i + 1]``, equal rows have one, from 0 up."""
    labels = np.empty(len(features), dtype=np.int32)
    for start, stop in pairwise(offsets):
        known: dict[bytes, int] = {}
        for row in range(start, stop):
            labels[row] = known.setdefault(features[row].tobytes(), len(known))
    return labels


def assign_equal(
    queries: NDArray[np.float64],
    query_offsets: NDArray[np.int64],
    stored: NDArray[np.float64],
    offsets: NDArray[np.int64],
    labels: Labels,
    assigned: Labels,
) -> None:
    """Write into ``assigned`` (m,) the label of a ``stored`` row that is equal to the query, or NOISE where none is.

    Queries (m, d) of sets with nothing stored are left as they are.
    """
    for (first, last), (start, stop) in zip(pairwise(query_offsets), pairwise(offsets), strict=True):
        known = {stored[row].tobytes(): labels[row] for row in range(start, stop)}
        for query in range(first, last) if known else ():
            assigned[query] = known.get(queries[query].tobytes(), NOISE)
