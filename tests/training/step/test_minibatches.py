"""Mini-batches of whole prompts."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

from meds_openrlhf.config.schema import PolicySettings
from meds_openrlhf.training.step.batches import arranged, order_by_prompts, padded_batches
from meds_openrlhf.training.step.policy import PolicyActor
from tests.training.step.rollouts import arguments, recorded_rollouts


def lengths_of(count: int, seed: int = 0) -> np.ndarray:
    """Log-normal lengths, cut as those of Qwen2.5-Math."""
    drawn = np.random.default_rng(seed).lognormal(np.log(1100) - 0.18, 0.6, count)
    return np.minimum(drawn, 3072).astype(np.int64)


@pytest.mark.parametrize(("ranks", "at_most"), [(8, 1.06), (32, 1.2)])
def test_ranks_that_wait_for_each_other_seldom_wait(ranks: int, at_most: float) -> None:
    lengths = lengths_of(8192)
    order = np.array(order_by_prompts(lengths, 16, 16, ranks, [42, 1]))  # (ranks, micro-batches of one response)
    assert lengths[order].max(axis=0).sum() / (lengths.sum() / ranks) <= at_most


@given(
    batches=st.integers(1, 6), samples=st.integers(1, 6), share=st.integers(1, 5), ranks=st.integers(1, 5),
    step=st.integers(0, 9),
)  # fmt: skip
def test_every_sample_is_trained_on_once(batches: int, samples: int, share: int, ranks: int, step: int) -> None:
    minibatch = share * ranks
    lengths = lengths_of(batches * minibatch * samples, step)
    order = order_by_prompts(lengths, samples, minibatch, ranks, [7, step])
    assert sorted(np.concatenate(order).tolist()) == list(range(batches * minibatch * samples))
    assert len({len(of_rank) for of_rank in order}) == 1


@given(ranks=st.sampled_from([1, 2, 4, 8]), step=st.integers(0, 9))
def test_lengths_and_ranks_do_not_change_what_a_mini_batch_holds(ranks: int, step: int) -> None:
    """Its gradient is the mean over its responses, so it is the same too."""
    some = order_by_prompts(lengths_of(256, step), 4, 8, ranks, [7, step])
    whole = order_by_prompts(np.ones(256, np.int64), 4, 8, 1, [7, step])[0].reshape(-1, 32)
    shares = np.array(some).reshape(ranks, len(whole), -1).swapaxes(0, 1).reshape(len(whole), -1)
    np.testing.assert_array_equal(np.sort(shares, axis=1), np.sort(whole, axis=1))


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


def test_the_order_is_the_seeds_and_another_in_each_step() -> None:
    first, again, next_step = (order_by_prompts(lengths_of(128), 2, 4, 1, [1, step])[0].tolist() for step in (1, 1, 2))
    assert first == again != next_step
    assert first != list(range(128))


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
        received = pickle.loads(pickle.dumps(sent))
        assert received.info["reward"].tolist() == expected.tolist()
        assert received.prompts == [f"prompt {sample // 2}" for sample in expected]
        assert received.attention_mask.sum(1).tolist() == lengths[expected].tolist()
        assert received.index is None


class Buffer(list[int]):
    """A replay buffer of numbers."""

    sample_batch_size = 2

    def collate_fn(self, items: list[int]) -> SimpleNamespace:
        mask = torch.ones(len(items), 1)
        return SimpleNamespace(items=items, action_mask=mask, to_device=lambda device: None)

    def clear(self) -> None:
        self[:] = []


def trained_order(minibatches: str) -> list[int]:
    """The order in which OpenRLHF's update loop takes 40 responses."""
    seen: list[int] = []

    def training_step(batch: SimpleNamespace, *_: object) -> dict[str, object]:
        seen.extend(batch.items)
        metrics = {"policy_loss": torch.zeros(())}
        return {"metrics": metrics, "weights": {"policy_loss": "token"}, "num_action_tokens": 2.0, "num_samples": 2.0}

    strategy = SimpleNamespace(
        ring_attn_group=None, accumulated_gradient=2, is_rank_0=lambda: False, all_reduce=lambda status: status
    )
    train = SimpleNamespace(dynamic_batch_enable=False)
    trainer = ActorPPOTrainer.__new__(ActorPPOTrainer)
    trainer.__dict__.update(
        args=SimpleNamespace(train=train, ds=SimpleNamespace(tensor_parallel_size=1)), strategy=strategy, max_epochs=1,
        replay_buffer=Buffer(range(40)), dataloader_pin_memory=False, training_step=training_step,
    )  # fmt: skip
    actor = PolicyActor.__new__(PolicyActor)
    settings = PolicySettings(minibatches=minibatches)
    actor.__dict__.update(trainer=trainer, actor=torch.nn.Identity(), _policy_settings=settings)
    actor.fit()
    return seen


def test_the_policy_is_trained_in_the_order_of_its_batch() -> None:
    assert trained_order("prompts") == list(range(40))
    assert sorted(trained_order("responses")) == list(range(40)) != trained_order("responses")
