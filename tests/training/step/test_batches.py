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

from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.step.batches import even_batches, flat_experiences, padded_batches
from tests.training.step.rollouts import recorded_rollouts

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
    for sample in samples:
        sample.info["tries"] = torch.tensor(sample.index)
        if log_probs:
            sample.rollout_log_probs = torch.rand(sample.action_mask.shape)
    return samples


@given(seed=st.integers(0, 99), count=st.integers(1, 12), size=st.integers(1, 5), log_probs=st.booleans())
def test_padded_batches_are_openrlhfs(seed: int, count: int, size: int, log_probs: bool) -> None:
    samples = samples_of(seed, count, log_probs=log_probs)
    wanted = [Experience.concat_experiences(samples[at : at + size], PAD) for at in range(0, count, size)]
    orders = [np.arange(at, min(at + size, count)) for at in range(0, count, size)]
    require_equal(padded_batches(samples, orders, PAD), wanted)


def test_a_metric_of_some_responses_alone_is_named() -> None:
    samples = samples_of(0, 3)
    del samples[1].info["tries"]
    with pytest.raises(RunLostError, match="only some responses have the metric 'tries'"):
        padded_batches(samples, [np.arange(2)], PAD)


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


@given(
    lengths=st.lists(st.integers(1, 100), min_size=8, max_size=80), most=st.integers(20, 400), ranks=st.integers(1, 8)
)
def test_even_batches_hold_every_sample_once_and_not_too_many_tokens(lengths: list[int], most: int, ranks: int) -> None:
    batches = even_batches(np.array(lengths), most, ranks)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert len(batches) % ranks == 0
    sums = [sum(lengths[one] for one in batch) for batch in batches]
    fits = max(sums) <= most
    assert fits or len(batches) == len(lengths) // ranks * ranks  # no more batches can be made
    if fits:
        fewer = max(-(-sum(lengths) // most), ranks)  # so many at least
        assert len(batches) <= 2 * fewer + ranks
        assert max(sums) - min(sums) <= max(lengths)


def test_a_batch_may_be_exactly_full_and_every_rank_needs_a_sample() -> None:
    assert [batch.tolist() for batch in even_batches(np.array([6, 4]), 10, 1)] == [[0, 1]]
    assert len(even_batches(np.array([5, 3]), 4, 2)) == 2
    with pytest.raises(ValueError, match="1 samples cannot fill a batch on each of 2 ranks"):
        even_batches(np.array([5]), 4, 2)


def test_even_batches_of_a_step_are_nearly_equal() -> None:
    lengths = np.minimum(np.random.default_rng(0).lognormal(6.7, 0.8, 8192), 3072).astype(np.int64) + 100
    batches = even_batches(lengths, 16384, 8)
    sums = np.array([lengths[batch].sum() for batch in batches])
    assert lengths.sum() / 16384 <= len(batches) < lengths.sum() / 16384 + 16
    assert sums.max() <= min(16384, 1.01 * sums.mean())
