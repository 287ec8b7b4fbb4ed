"""How the responses of a step and of an epoch divide."""

import pytest

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
