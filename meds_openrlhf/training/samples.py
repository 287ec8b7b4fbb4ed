"""The one order of a step's samples: by their index. OpenRLHF deals them out to micro-batches in any other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from openrlhf.trainer.ppo_utils.experience import Experience


def in_order(experiences: Sequence[Experience], items: Iterable[Iterable[Any]]) -> list[Any]:
    """One item for each of the n samples; ``items`` are those of each micro-batch."""
    places = _places(experiences)
    flat = [item for of_batch in items for item in of_batch]
    return [flat[place] for place in places]


def values_in_order(experiences: Sequence[Experience], values: Iterable[ArrayLike]) -> NDArray[Any]:
    """The same for tensors and arrays, (B,) or (B, ...) of each micro-batch: (n,) or (n, ...)."""
    flat: NDArray[Any] = np.concatenate([np.asarray(of_batch) for of_batch in values])
    return flat[_places(experiences)]


def _places(experiences: Sequence[Experience]) -> NDArray[np.intp]:
    """Where sample 0, 1, ... is among the micro-batches' samples."""
    return np.argsort([sample for experience in experiences for sample in experience.index])
