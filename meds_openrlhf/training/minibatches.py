"""Mini-batches of whole prompts: all responses to a prompt go into one update. OpenRLHF shuffles single responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience
from torch.utils.data import DataLoader

from meds_openrlhf.training.batches import FlatExperience, flat_experiences
from meds_openrlhf.training.roles import data_parallel_ranks
from meds_openrlhf.training.samples import values_in_order


def order_by_prompts(
    lengths: NDArray[np.int64], samples: int, minibatch: int, ranks: int, seed: list[int]
) -> list[NDArray[np.int64]]:
    """Return for each rank the samples that it trains on, in order; sample i answers prompt ``i // samples``.

    ``seed`` determines a random order of the prompts. A mini-batch contains the responses to the next ``minibatch``
    prompts. Sorted by their ``lengths`` (n,), longest first, they are dealt to the ranks in turn: the ranks, which wait
    for each other after every micro-batch, work on responses of nearly the same length at a time. Raises ValueError if
    the numbers do not divide evenly.
    """
    prompts = len(lengths) // samples
    if prompts % minibatch or minibatch * samples % ranks:
        raise ValueError(f"{prompts} prompts make no whole mini-batches of {minibatch} for {ranks} ranks")
    drawn = np.random.default_rng(seed).permutation(prompts)
    members = (drawn[:, None] * samples + np.arange(samples)).reshape(-1, minibatch * samples)
    by_length = np.take_along_axis(members, np.argsort(-lengths[members], axis=1, kind="stable"), axis=1)
    return [by_length[:, rank::ranks].reshape(-1) for rank in range(ranks)]


def by_prompts(experiences: list[Experience], args: SimpleNamespace, step: int) -> list[FlatExperience]:
    """Arrange the step's experiences in mini-batches of whole prompts: one experience for each data-parallel rank."""
    lengths = values_in_order(experiences, [batch.attention_mask.sum(1) for batch in experiences])
    samples = args.rollout.n_samples_per_prompt
    minibatch = args.train.batch_size // samples
    order = order_by_prompts(lengths, samples, minibatch, data_parallel_ranks(args), [args.train.seed, step])
    return flat_experiences(experiences, order)


def in_given_order(*args: Any, **kwargs: Any) -> DataLoader:
    """Create a DataLoader that never shuffles, even with ``shuffle=True``."""
    return DataLoader(*args, **{**kwargs, "shuffle": False})
