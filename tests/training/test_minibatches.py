"""Mini-batches of whole prompts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

from meds_openrlhf.config.schema import PolicySettings
from meds_openrlhf.training.actor import PolicyActor
from meds_openrlhf.training.minibatches import by_prompts, even_batch, in_given_order, order_by_prompts
from tests.training.rollouts import arguments


def test_the_papers_mini_batches_hold_sixteen_prompts() -> None:
    """512 prompts of 16 responses on 32 ranks: 32 mini-batches, in each of which a rank has half a prompt."""
    order = order_by_prompts(512, 16, 16, 32, [42, 1])
    assert [len(of_rank) for of_rank in order] == [256] * 32
    for number in range(32):
        together = np.concatenate([of_rank[8 * number : 8 * number + 8] for of_rank in order])
        prompts, counts = np.unique(together // 16, return_counts=True)
        assert len(prompts) == 16
        assert (counts == 16).all()


@given(
    batches=st.integers(1, 6), samples=st.integers(1, 6), share=st.integers(1, 5), ranks=st.integers(1, 5),
    step=st.integers(0, 9),
)  # fmt: skip
def test_every_sample_is_trained_on_once(batches: int, samples: int, share: int, ranks: int, step: int) -> None:
    minibatch = share * ranks
    order = order_by_prompts(batches * minibatch, samples, minibatch, ranks, [7, step])
    assert sorted(np.concatenate(order).tolist()) == list(range(batches * minibatch * samples))
    assert len({len(of_rank) for of_rank in order}) == 1


@pytest.mark.parametrize(("prompts", "minibatch", "ranks"), [(17, 16, 2), (16, 16, 3), (8, 16, 1)])
def test_parts_that_would_be_unequal_are_refused(prompts: int, minibatch: int, ranks: int) -> None:
    with pytest.raises(ValueError, match="make no whole mini-batches"):
        order_by_prompts(prompts, 2, minibatch, ranks, [1, 1])


def test_an_even_batch_fills_mini_batches_and_gives_every_rank_as_much() -> None:
    flags = {"train.batch_size": 256, "rollout.n_samples_per_prompt": 16, "rollout.micro_batch_size": 4}
    sizes = {"rollout.batch_size": 512, "algo.kl.init_coef": 0.001}
    for ranks, expected in [(8, 256), (32, 256), (96, 768)]:
        counts = {"actor.num_gpus_per_node": ranks, "ref.num_gpus_per_node": ranks}
        assert even_batch(arguments(**flags, **sizes, **counts)) == expected


def test_the_order_is_the_seeds_and_another_in_each_step() -> None:
    first, again, next_step = (order_by_prompts(64, 2, 4, 1, [1, step])[0].tolist() for step in (1, 1, 2))
    assert first == again != next_step
    assert first != list(range(128))


def batch(index: list[int]) -> Experience:
    """Samples whose one token and reward say who they are."""
    rows = torch.tensor(index)
    return Experience(
        sequences=rows[:, None] + 100,
        attention_mask=torch.ones(len(index), 1, dtype=torch.long),
        action_mask=torch.ones(len(index), 1, dtype=torch.long),
        advantages=rows[:, None].float(),
        index=list(index),
        info={"reward": rows.float()},
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_for_the_ranks_hold_what_came_in_any_order(ranks: int) -> None:
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=2),
        train=SimpleNamespace(batch_size=4, seed=3),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    arranged = by_prompts([batch([3, 0, 5]), batch([1, 7, 4]), batch([2, 6])], args, step=1)
    order = order_by_prompts(4, 2, 2, ranks, [3, 1])
    for one, expected in zip(arranged, order, strict=True):
        assert one.sequences[:, 0].tolist() == [100 + sample for sample in expected]
        assert one.advantages[:, 0].tolist() == one.info["reward"].tolist() == expected.tolist()


def test_a_loader_in_the_given_order() -> None:
    assert [int(one) for one in in_given_order(range(50), shuffle=True)] == list(range(50))


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
    actor.__dict__.update(trainer=trainer, actor=torch.nn.Identity())
    actor.use_settings(PolicySettings(minibatches=minibatches))
    actor.fit()
    return seen


def test_the_policy_is_trained_in_the_order_of_its_batch() -> None:
    assert trained_order("prompts") == list(range(40))
    assert sorted(trained_order("responses")) == list(range(40)) != trained_order("responses")
