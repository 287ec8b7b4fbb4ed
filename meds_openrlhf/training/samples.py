"""Puts a step's samples in the order of their index; OpenRLHF distributes them to micro-batches in another order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from openrlhf.trainer.ppo_utils.experience import Experience


def in_order(experiences: Sequence[Experience], items: Iterable[Iterable[Any]]) -> list[Any]:
    """Return one item per sample in the order of the index; ``items`` are the items of each micro-batch."""
    places = places_of(experiences)
    flat = [item for of_batch in items for item in of_batch]
    return [flat[place] for place in places]


def values_in_order(experiences: Sequence[Experience], values: Iterable[ArrayLike]) -> NDArray[Any]:
    """Like `in_order`, for tensors and arrays: (B,) or (B, ...) per micro-batch become (n,) or (n, ...)."""
    flat: NDArray[Any] = np.concatenate([np.asarray(of_batch) for of_batch in values])
    return flat[places_of(experiences)]


def places_of(experiences: Sequence[Experience]) -> NDArray[np.intp]:
    """Return the position of sample 0, 1, ... among the samples of all micro-batches."""
    return np.argsort([sample for experience in experiences for sample in experience.index])
