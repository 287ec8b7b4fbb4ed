"""A control: cluster sizes without their information."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shuffled(sizes: NDArray[np.integer], rows: NDArray[np.bool_], seed: list[int]) -> NDArray[np.integer]:
    """Return ``sizes`` (g, N) exchanged at random among the responses of each group that have ``rows`` (g, N).

    A control: the same sizes without their information.
    """
    keys = np.where(rows, np.random.default_rng(seed).random(rows.shape), np.inf)
    drawn, places = np.argsort(keys, axis=1), np.argsort(~rows, axis=1, kind="stable")  # rows first, in two orders
    result = np.empty_like(sizes)
    np.put_along_axis(result, places, np.take_along_axis(sizes, drawn, axis=1), axis=1)
    return np.where(rows, result, sizes)
