"""New and stored rows of many prompts in flat arrays, and the labels that are no cluster's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NOISE = -1  # of no cluster
UNASSIGNED = -2  # a first visit: no rows are stored or clustered yet
NEIGHBORS = 3  # stored rows that vote on a new row, as in the reference code

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Labels = NDArray[np.int32]


class Sets(NamedTuple):
    """New and stored rows of g sets, independent of each other: set i is ``rows[offsets[i]:offsets[i + 1]]``."""

    new: Floats  # (m, d)
    new_offsets: Integers  # (g + 1,)
    stored: Floats  # (n, d)
    offsets: Integers  # (g + 1,)
    labels: Labels  # (n,) of the stored rows, from their last clustering


def plain(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Return the array as compiled code expects it; numba would compile a second version for read-only arrays."""
    return np.require(array, dtype, ["C", "W"])
