"""Puts a step's samples in the order of their index, since OpenRLHF reorders them; reads and judges responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from openrlhf.trainer.ppo_utils.experience import Experience


class SampleOrder:
    """The order of a step's samples, which OpenRLHF's micro-batches have in another.

    ``places`` (n,): the position of sample 0, 1, ... among the samples of all micro-batches.
    """

    def __init__(self, experiences: Sequence[Experience]) -> None:
        self.places = np.argsort([sample for experience in experiences for sample in experience.index])

    def items(self, of_batches: Iterable[Iterable[Any]]) -> list[Any]:
        """Return one item per sample; ``of_batches`` has the items of each micro-batch."""
        flat = [item for of_batch in of_batches for item in of_batch]
        return [flat[place] for place in self.places]

    def values(self, of_batches: Iterable[ArrayLike]) -> NDArray[Any]:
        """Return tensors and arrays, (B,) or (B, ...) per micro-batch, as (n,) or (n, ...)."""
        flat: NDArray[Any] = np.concatenate([np.asarray(of_batch) for of_batch in of_batches])
        return flat[self.places]


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


def generated_tokens(action_mask: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Return which tokens (B, T) the policy generated, from OpenRLHF's masks (B, T - 1) and (B, T).

    ``action_mask[t]`` refers to the token at ``t + 1``.
    """
    return torch.nn.functional.pad(action_mask.bool() & attention_mask[:, 1:].bool(), (1, 0))


def is_right(experience: Experience, threshold: float) -> NDArray[np.bool_]:
    """Return which samples (B,) are right: their score, or without scores their reward, is at least ``threshold``.

    Call this before OpenRLHF subtracts its length penalties from the rewards.
    """
    values = experience.rewards if experience.scores is None else experience.scores
    return np.asarray(values.float() >= threshold)
