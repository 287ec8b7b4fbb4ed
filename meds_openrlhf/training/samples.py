"""Puts a step's samples in the order of their index, since OpenRLHF deals them anew; and reads their responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


def responses_of(experience: Experience) -> Iterator[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield per sample the tokens (t,) from the first generated token on, and which of them are generated (t,).

    ``action_mask[t]`` refers to the token at ``t + 1``.
    """
    present = experience.attention_mask[:, 1:].numpy() != 0
    own = (experience.action_mask.numpy() != 0) & present
    starts = np.where(own.any(axis=1), own.argmax(axis=1), own.shape[1])
    ends = own.shape[1] - present[:, ::-1].argmax(axis=1)
    ids = experience.sequences[:, 1:].numpy().astype(np.int32)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist())):
        yield ids[row, start:end], own[row, start:end]
