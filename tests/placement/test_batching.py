"""Batches and ranks, against OpenRLHF's way to deal them, written out here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.config import ConfigError
from meds_openrlhf.placement.batching import Batching, listed
from tests.placement.clusters import batching

sizes = ("prompts", "samples", "rollout_micro_batch", "train_batch", "train_micro_batch")
batchings = st.builds(Batching, **dict(zip(sizes, map(st.integers, [1] * 5, (12, 4, 6, 24, 4)))))
dynamic = st.builds(Batching, **dict.fromkeys(sizes, st.integers(1, 24)), dynamic=st.just(True))


def dealt(sizes: Batching, ranks: int) -> list[int]:
    """The responses of each rank, as `RayActorGroup.async_run_method_batch` of OpenRLHF deals rollout micro-batches."""
    size = sizes.rollout_micro_batch
    pieces = [min(size, sizes.responses - start) for start in range(0, sizes.responses, size)]
    run = -(-len(pieces) // ranks)
    return [sum(pieces[rank * run : (rank + 1) * run]) for rank in range(ranks)]


@given(sizes=batchings, ranks=st.integers(1, 8))
def test_ranks_are_taken_with_which_openrlhf_and_deepspeed_work(sizes: Batching, ranks: int) -> None:
    accumulation = sizes.train_batch // sizes.train_micro_batch // ranks  # DeepSpeed derives it, and asserts:
    deepspeed = sizes.train_batch == sizes.train_micro_batch * accumulation * ranks
    parser = sizes.responses // sizes.rollout_micro_batch >= ranks  # asserted by OpenRLHF's
    shares = dealt(sizes, ranks)
    in_lockstep = len(set(shares)) == 1 and shares[0] >= sizes.train_micro_batch
    assert sizes.takes(ranks) == (deepspeed and parser and in_lockstep)


@given(sizes=batchings | dynamic, ranks=st.integers(1, 8))
def test_ranks_that_get_the_same_responses_count_as_one(sizes: Batching, ranks: int) -> None:
    twice = Batching(**{**vars(sizes), "duplicates": 2})
    assert twice.takes(2 * ranks) == sizes.takes(ranks)
    assert not twice.takes(2 * ranks - 1)
    assert twice.even_counts() == [2 * count for count in sizes.even_counts()]


@given(sizes=batchings | dynamic)
def test_even_counts_suit_every_model(sizes: Batching) -> None:
    for roles in (("policy", "engines"), ("policy", "critic", "reference", "reward")):
        for count in sizes.even_counts(roles):
            assert all(sizes.takes(count, role) for role in roles if role != "engines")
            assert sizes.train_batch % count == sizes.responses % count == 0


@given(sizes=batchings, ranks=st.lists(st.integers(1, 8), min_size=1, max_size=3))
def test_an_even_batch_is_whole_and_gives_every_rank_of_every_model_as_much(sizes: Batching, ranks: list[int]) -> None:
    even = sizes.even_batch(ranks)
    assert even % sizes.train_batch == even % sizes.samples == 0
    step = Batching(**{**vars(sizes), "prompts": even // sizes.samples})
    assert all(len(set(dealt(step, count))) == 1 for count in ranks)


@given(sizes=batchings | dynamic, prompts=st.integers(0, 60), ranks=st.integers(1, 8))
def test_an_epoch_has_the_steps_that_the_generator_makes(sizes: Batching, prompts: int, ranks: int) -> None:
    """It cuts the last batch of an epoch, unless it is whole, to a multiple of the even batch."""
    even = sizes.even_batch([ranks])
    made = [min(sizes.prompts, prompts - start) * sizes.samples for start in range(0, prompts, sizes.prompts)]
    made = [count if count == sizes.responses else count - count % even for count in made]
    assert sizes.steps_of_an_epoch(prompts, even) == sum(count > 0 for count in made)


def test_dynamic_batches_have_a_piece_for_every_rank() -> None:
    run = batching(dynamic=True, train_batch=64, prompts=4, rollout_micro_batch=16)
    assert not run.takes(8)  # OpenRLHF's parser counts 64 // 16 pieces
    assert run.takes(2)
    assert not run.takes(3)  # each would train on 21 of a mini-batch's 64, and one would be dropped
    assert listed([1, 2, 4, 8, 16, 32]) == "1, 2, 4, 8, 16, 32"
    assert listed(batching().even_counts()) == "1, 2, 4, 8, 16, … 256"  # many counts are shortened


@pytest.mark.parametrize("size", [24, 8, 48])
def test_minibatches_that_cannot_be_made_of_whole_prompts(size: int) -> None:
    message = f"^train.batch_size={size}: must divide the 8192 responses .* be a multiple of the 16 to a prompt"
    with pytest.raises(ConfigError, match=message):
        batching(train_batch=size).require_whole_minibatches(of_prompts=True)
    batching().require_whole_minibatches(of_prompts=True)
