"""Mini-batches of whole prompts: all responses to a prompt go into one update. OpenRLHF shuffles single responses."""

from __future__ import annotations

from math import lcm
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch
from torch.utils.data import DataLoader

from meds_openrlhf.training.roles import role_requests
from meds_openrlhf.training.samples import in_order


def order_by_prompts(
    prompts: int, samples: int, minibatch: int, ranks: int, seed: list[int]
) -> list[NDArray[np.int64]]:
    """Return for each rank the samples that it trains on, in order; sample i answers prompt ``i // samples``.

    ``seed`` determines a random order of the prompts. A mini-batch contains the responses to the next ``minibatch``
    prompts; each rank gets an equal share of them. Raises ValueError if the numbers do not divide evenly.
    """
    if prompts % minibatch or minibatch * samples % ranks:
        raise ValueError(f"{prompts} prompts make no whole mini-batches of {minibatch} for {ranks} ranks")
    drawn = np.random.default_rng(seed).permutation(prompts)
    in_order = (drawn[:, None] * samples + np.arange(samples)).reshape(-1)
    shares = in_order.reshape(-1, ranks, minibatch * samples // ranks)  # (mini-batches, ranks, samples)
    return [shares[:, rank].reshape(-1) for rank in range(ranks)]


def by_prompts(experiences: list[Experience], args: SimpleNamespace, step: int) -> list[Experience]:
    """Arrange the step's experiences in mini-batches of whole prompts: one batch for each data-parallel rank."""
    by_sample = in_order(experiences, map(split_experience_batch, experiences))
    samples = args.rollout.n_samples_per_prompt
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node
    ranks = ranks // args.ds.ring_attn_size // args.ds.tensor_parallel_size
    minibatch = args.train.batch_size // samples
    order = order_by_prompts(len(by_sample) // samples, samples, minibatch, ranks, [args.train.seed, step])
    return [_batch([by_sample[sample] for sample in of_rank]) for of_rank in order]


def _batch(items: list[Experience]) -> Experience:
    """Join single samples into a batch, with ``info`` in the form of OpenRLHF's first batches."""
    batch = make_experience_batch(items)
    info = batch.info or {}
    batch.info = {name: torch.stack(one) if isinstance(one, list) else one for name, one in info.items()}
    return batch


def even_batch(args: SimpleNamespace) -> int:
    """Return the number of responses that divides into whole mini-batches, whole groups and equal work for all ranks.

    The size of OpenRLHF's batches is a multiple of this number, except for the last batch of an epoch. Ranks with
    unequal work would wait for each other forever, and DeepSpeed would carry the gradients of a partial mini-batch into
    the next step.
    """
    duplicates = args.ds.ring_attn_size * args.ds.tensor_parallel_size
    ranks = [request.gpus // duplicates for request in role_requests(args) if request.role != "engines"]
    pieces = [] if args.train.dynamic_batch_enable else [args.rollout.micro_batch_size * count for count in ranks]
    return lcm(args.train.batch_size, args.rollout.n_samples_per_prompt, *pieces)


def in_given_order(*args: Any, **kwargs: Any) -> DataLoader:
    """Create a DataLoader that never shuffles, even with ``shuffle=True``."""
    return DataLoader(*args, **{**kwargs, "shuffle": False})
