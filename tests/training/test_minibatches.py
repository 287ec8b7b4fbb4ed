"""Mini-batches of whole prompts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.training.minibatches import by_prompts, in_given_order, order_by_prompts


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
    prompts=st.integers(1, 30), samples=st.integers(1, 6), minibatch=st.integers(1, 8), ranks=st.integers(1, 5),
    step=st.integers(0, 9),
)  # fmt: skip
def test_every_sample_is_trained_on_once(prompts: int, samples: int, minibatch: int, ranks: int, step: int) -> None:
    order = order_by_prompts(prompts, samples, minibatch, ranks, [7, step])
    assert sorted(np.concatenate(order).tolist()) == list(range(prompts * samples))


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
