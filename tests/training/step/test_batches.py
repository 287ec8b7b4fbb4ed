"""Batches field by field are OpenRLHF's, sample by sample; and mini-batches of whole prompts."""

import pickle
from dataclasses import fields
from types import SimpleNamespace
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
from openrlhf.trainer.ray import ppo_actor

from meds_openrlhf.config.schema import MedsSettings, PolicySettings
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.step.batches import (
    FlatSamples,
    arranged,
    even_batches,
    flat_experiences,
    order_by_prompts,
    padded_batches,
)
from meds_openrlhf.training.step.policy import PolicyActor
from tests.training.step.rollouts import BY_TOKENS, arguments, recorded_rollouts

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


@given(seed=st.integers(0, 99), count=st.integers(0, 12), uneven=st.booleans())
def test_samples_are_the_same_after_a_queue(seed: int, count: int, uneven: bool) -> None:
    samples = samples_of(seed, count, log_probs=not uneven)
    for sample in samples:
        sample.info["milliseconds"] = torch.tensor([2**40])  # an agent's
    if uneven and count:  # a response without a reward, and one with a whole number as its reward, and other metrics
        samples[0].rewards, samples[-1].rewards = None, torch.tensor([1])
        samples[0].info = {}
    sent = pickle.dumps(FlatSamples(samples))
    require_equal(list(pickle.loads(sent)), samples)
    assert count < 6 or uneven or len(sent) < len(pickle.dumps(samples)) / 3


def test_a_metric_of_some_responses_alone_is_named() -> None:
    samples = samples_of(0, 3)
    del samples[1].info["tries"]
    with pytest.raises(RunLostError, match="the metric 'tries' is missing for some responses"):
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
    most = max(most, *lengths)
    fits = max(sums) <= most
    assert fits or len(batches) == len(lengths) // ranks * ranks  # no more batches can be made
    if fits:
        fewer = max(-(-sum(lengths) // most), ranks)  # so many at least
        assert len(batches) <= 2 * fewer + ranks
        assert max(sums) - min(sums) <= max(lengths)


def test_too_long_sample_leaves_other_batches_as_they_are() -> None:
    assert len(even_batches(np.array([20, *[2] * 40]), 10, 1)) == 5


def test_a_batch_may_be_exactly_full_and_every_rank_needs_a_sample() -> None:
    assert [batch.tolist() for batch in even_batches(np.array([6, 4]), 10, 1)] == [[0, 1]]
    assert len(even_batches(np.array([5, 3]), 4, 2)) == 2
    with pytest.raises(ValueError, match="1 samples cannot fill a batch on each of 2 ranks"):
        even_batches(np.array([5]), 4, 2)


# ── mini-batches of whole prompts ──


def lengths_of(count: int, seed: int = 0) -> np.ndarray:
    """Log-normal lengths, cut as those of Qwen2.5-Math."""
    drawn = np.random.default_rng(seed).lognormal(np.log(1100) - 0.18, 0.6, count)
    return np.minimum(drawn, 3072).astype(np.int64)


@given(
    batches=st.integers(1, 6), samples=st.integers(1, 6), share=st.integers(1, 5), ranks=st.integers(1, 5),
    step=st.integers(0, 9),
)  # fmt: skip
def test_lengths_and_ranks_do_not_change_what_a_mini_batch_holds(
    batches: int, samples: int, share: int, ranks: int, step: int
) -> None:
    """Its gradient is the mean over its responses, so it is the same too. Every sample is in one mini-batch."""
    minibatch, count = share * ranks, batches * share * ranks * samples
    some = order_by_prompts(lengths_of(count, step), samples, minibatch, ranks, [7, step])
    whole = order_by_prompts(np.ones(count, np.int64), samples, minibatch, 1, [7, step])[0].reshape(batches, -1)
    shares = np.array(some).reshape(ranks, batches, -1).swapaxes(0, 1).reshape(batches, -1)
    np.testing.assert_array_equal(np.sort(shares, axis=1), np.sort(whole, axis=1))
    assert sorted(whole.reshape(-1).tolist()) == list(range(count))


def test_responses_of_one_length_stay_in_the_order_drawn() -> None:
    drawn = np.random.default_rng([7, 1]).permutation(64)
    expected = (drawn[:, None] * 4 + np.arange(4)).reshape(2, 128)
    lengths = np.random.default_rng(0).integers(1, 4, 256)
    (order,) = order_by_prompts(lengths, 4, 32, 1, [7, 1])
    for members, ordered in zip(expected.tolist(), order.reshape(2, 128).tolist()):
        assert ordered == sorted(members, key=lambda sample: -lengths[sample])


@pytest.mark.parametrize(("prompts", "minibatch", "ranks"), [(17, 16, 2), (16, 16, 3), (8, 16, 1)])
def test_parts_that_would_be_unequal_are_refused(prompts: int, minibatch: int, ranks: int) -> None:
    with pytest.raises(ValueError, match="cannot be split into mini-batches"):
        order_by_prompts(lengths_of(2 * prompts), 2, minibatch, ranks, [1, 1])


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_ranks_get_the_samples_of_their_order(ranks: int) -> None:
    args = arguments(**{
        "rollout.batch_size": 4, "rollout.n_samples_per_prompt": 2, "rollout.micro_batch_size": 1,
        "train.batch_size": 4, "train.micro_batch_size": 1, "train.seed": 3, "actor.num_gpus_per_node": ranks,
    })  # fmt: skip
    samples = recorded_rollouts(prompts=4, responses=2, rewards=range(8))
    batches = padded_batches(samples, [np.array(order) for order in ([3, 0, 5], [1, 7, 4], [2, 6])])
    lengths = np.array([sample.sequences.shape[1] for sample in samples])
    order = order_by_prompts(lengths, 2, 2, ranks, [3, 1])
    for sent, expected in zip(arranged(batches, args, 1, "prompts"), order, strict=True):
        assert [len(row) for row in sent.sequences] == lengths[expected].tolist()  # without padding
        received = pickle.loads(pickle.dumps(sent))
        assert received.info["reward"].tolist() == expected.tolist()
        assert received.prompts == [f"prompt {sample // 2}" for sample in expected]
        assert received.attention_mask.sum(1).tolist() == lengths[expected].tolist()
        assert received.index is None


@pytest.mark.parametrize("flags", [{}, BY_TOKENS], ids=["fixed", "by tokens"])
@pytest.mark.parametrize("minibatches", ["prompts", "responses"])
def test_the_driver_still_knows_which_samples_its_batches_have(minibatches: str, flags: dict[str, Any]) -> None:
    """OpenRLHF's way to deal batches by tokens takes the numbers away, and the rollout log is written afterwards."""
    args = arguments(**{
        "rollout.batch_size": 4, "rollout.n_samples_per_prompt": 2, "train.batch_size": 4, "train.micro_batch_size": 1,
        "rollout.micro_batch_size": 1, "actor.num_gpus_per_node": 2, **flags,
    })  # fmt: skip
    orders = [[3, 0, 5, 1], [7, 4, 2, 6]]
    batches = padded_batches(recorded_rollouts(prompts=4, responses=2), list(map(np.array, orders)))
    for batch, order in zip(batches, orders):
        batch.index = order
    dealt = arranged(batches, args, 1, minibatches)
    assert [batch.index for batch in batches] == orders
    assert sum(len(batch.prompts) for batch in dealt) == 8


@pytest.mark.parametrize("minibatches", ["prompts", "responses"])
def test_the_policy_is_trained_in_the_order_of_its_batch(minibatches: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(_actor: object, _kl: float) -> dict[str, list[int]]:
        """OpenRLHF's update loop makes its loader by this name."""
        return {"seen": [int(item) for item in ppo_actor.DataLoader(range(40), shuffle=True)]}

    monkeypatch.setattr(PolicyActor.__mro__[1], "fit", fit)
    actor = PolicyActor.__new__(PolicyActor)
    actor.strategy = SimpleNamespace(args=arguments())
    actor._meds = MedsSettings(run_dir="x", policy=PolicySettings(minibatches=minibatches))
    assert (actor.fit()["seen"] == list(range(40))) == (minibatches == "prompts")
