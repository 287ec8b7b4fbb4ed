"""Batches field by field are OpenRLHF's, sample by sample."""

import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    make_experience_batch,
    remove_padding_in_sequences,
    split_experience_batch,
)

from meds_openrlhf.training.batches import flat_experiences, padded_batches
from tests.training.rollouts import recorded_rollouts

PAD = 77


def require_equal(found: Any, wanted: Any) -> None:
    """Equal in values, dtypes and shapes, through dictionaries and lists."""
    assert type(found) is type(wanted)
    match wanted:
        case torch.Tensor():
            assert found.dtype == wanted.dtype
            assert torch.equal(found, wanted)
        case dict():
            assert list(found) == list(wanted)
            for name in wanted:
                require_equal(found[name], wanted[name])
        case Experience():
            for field in fields(Experience):
                require_equal(getattr(found, field.name), getattr(wanted, field.name))
        case list():
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted):
                require_equal(one, other)
        case _:
            assert found == wanted


def samples_of(seed: int, count: int, *, log_probs: bool = True) -> list[Experience]:
    samples = recorded_rollouts(seed, prompts=count, responses=1)
    for number, sample in enumerate(samples):
        sample.index = [number]
        sample.info["tries"] = torch.tensor([number])
        if log_probs:
            sample.rollout_log_probs = torch.rand(sample.action_mask.shape)
    return samples


@given(seed=st.integers(0, 99), count=st.integers(1, 12), size=st.integers(1, 5), log_probs=st.booleans())
def test_padded_batches_are_openrlhfs(seed: int, count: int, size: int, log_probs: bool) -> None:
    samples = samples_of(seed, count, log_probs=log_probs)
    wanted = [Experience.concat_experiences(samples[at : at + size], PAD) for at in range(0, count, size)]
    require_equal(padded_batches(samples, size, PAD), wanted)


def test_a_metric_of_some_responses_alone_is_named() -> None:
    samples = samples_of(0, 3)
    del samples[1].info["tries"]
    with pytest.raises(ValueError, match="tries: only some responses have this metric"):
        padded_batches(samples, 2, PAD)


@given(seed=st.integers(0, 99), count=st.integers(1, 12), size=st.integers(1, 5), ranks=st.integers(1, 3))
def test_ranks_get_the_samples_that_openrlhf_would_send(seed: int, count: int, size: int, ranks: int) -> None:
    samples = samples_of(seed, count)
    batches = [Experience.concat_experiences(samples[at : at + size], PAD) for at in range(0, count, size)]
    for batch in batches:
        batch.advantages = torch.rand(batch.action_mask.shape)
        batch.info["notes"] = [f"note {sample}" for sample in batch.index]
    orders = np.array_split(np.random.default_rng(seed).permutation(count), min(ranks, count))
    received = [pickle.loads(pickle.dumps(sent)) for sent in flat_experiences(batches, orders)]
    items = [item for batch in batches for item in remove_padding_in_sequences(split_experience_batch(batch))]
    for experience, order in zip(received, orders, strict=True):
        assert type(experience) is Experience
        wanted = [items[sample] for sample in order]
        found = remove_padding_in_sequences(split_experience_batch(experience))
        require_equal(found, wanted)
        require_equal(make_experience_batch(found), make_experience_batch(wanted))
