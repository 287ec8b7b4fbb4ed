"""How the responses of a step and of an epoch divide."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.host.openrlhf import even_batch, steps_of_an_epoch
from tests.training.step.rollouts import arguments


def test_an_even_batch_fills_mini_batches_and_gives_every_rank_as_much() -> None:
    flags = {"train.batch_size": 256, "rollout.n_samples_per_prompt": 16, "rollout.micro_batch_size": 4}
    sizes = {"rollout.batch_size": 512, "algo.kl.init_coef": 0.001}
    for ranks, expected in [(8, 256), (32, 256), (96, 768)]:
        counts = {"actor.num_gpus_per_node": ranks, "ref.num_gpus_per_node": ranks}
        assert even_batch(arguments(**flags, **sizes, **counts)) == expected


FLAGS = {"rollout.batch_size": 8, "rollout.n_samples_per_prompt": 4, "rollout.micro_batch_size": 4}


@pytest.mark.parametrize(("prompts", "steps"), [(16, 2), (19, 2), (20, 3), (24, 3), (100, 13), (4, 1)])
def test_an_epochs_last_step_holds_a_mini_batch_or_is_none(prompts: int, steps: int) -> None:
    assert steps_of_an_epoch(arguments(**FLAGS, **{"train.batch_size": 16}), prompts) == steps


def test_a_last_step_that_would_leave_ranks_without_work_is_none() -> None:
    """136 prompts, batches of 128, mini-batches of 64 responses: the last 64 are half a micro-batch for each rank."""
    flags = {
        "rollout.batch_size": 128, "rollout.n_samples_per_prompt": 8, "rollout.micro_batch_size": 16,
        "train.batch_size": 64, "actor.num_gpus_per_node": 8,
    }  # fmt: skip
    assert steps_of_an_epoch(arguments(**flags), 136) == 1
    assert steps_of_an_epoch(arguments(**flags, **{"train.dynamic_batch_enable": True}), 136) == 2


def test_too_few_prompts_for_a_step_are_refused() -> None:
    message = (
        r"^data.prompt_dataset.*: has 3 prompts to train on, which make 12 responses, but a step needs 16. Use more"
    )
    with pytest.raises(ConfigError, match=message):
        steps_of_an_epoch(arguments(**FLAGS, **{"train.batch_size": 16}), 3)


@given(
    prompts=st.integers(1, 60), batch=st.integers(1, 10), samples=st.integers(1, 4), minibatches=st.integers(1, 4),
    ranks=st.integers(1, 4), micro=st.integers(1, 3),
)  # fmt: skip
def test_steps_are_announced_that_the_generator_makes(
    prompts: int, batch: int, samples: int, minibatches: int, ranks: int, micro: int
) -> None:
    """It cuts the last batch of an epoch, unless it is whole, to a multiple of the even batch."""
    assume(batch * samples // micro >= ranks)
    args = arguments(
        **{
            "rollout.batch_size": batch, "rollout.n_samples_per_prompt": samples, "rollout.micro_batch_size": micro,
            "train.batch_size": minibatches * samples, "actor.num_gpus_per_node": ranks,
            "algo.advantage.estimator": "reinforce",
        }
    )  # fmt: skip
    made = [min(batch, prompts - start) * samples for start in range(0, prompts, batch)]
    made = [count if count == batch * samples else count - count % even_batch(args) for count in made]
    if any(made):
        assert steps_of_an_epoch(args, prompts) == sum(count > 0 for count in made)
    else:
        with pytest.raises(ConfigError):
            steps_of_an_epoch(args, prompts)
