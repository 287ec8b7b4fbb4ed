"""How the responses of a step and of an epoch divide into mini-batches and over the ranks."""

from __future__ import annotations

from math import lcm
from types import SimpleNamespace

from meds_openrlhf.config import ConfigError
from meds_openrlhf.training.roles import duplicates, role_requests


def ranks_of_roles(args: SimpleNamespace) -> list[int]:
    """Return for policy, critic, reference and reward how many of their ranks get different samples."""
    return [request.gpus // duplicates(args) for request in role_requests(args) if request.role != "engines"]


def even_batch(args: SimpleNamespace) -> int:
    """Return the number of responses that divides into whole mini-batches, whole groups and equal work for all ranks.

    The last batch of an epoch is cut to a multiple of this number. Ranks with unequal work would wait for each other
    forever, and DeepSpeed would carry the gradients of a partial mini-batch into the next step.
    """
    ranks = ranks_of_roles(args)
    pieces = [] if args.train.dynamic_batch_enable else [args.rollout.micro_batch_size * count for count in ranks]
    return lcm(args.train.batch_size, args.rollout.n_samples_per_prompt, *pieces)


def steps_of_an_epoch(args: SimpleNamespace, prompts: int) -> int:
    """Return the number of training steps in an epoch over ``prompts``, if no prompt is filtered out.

    Raises ConfigError if there is none.
    """
    samples = args.rollout.n_samples_per_prompt
    whole, left = divmod(prompts, args.rollout.batch_size)
    steps: int = whole + (left * samples >= even_batch(args))
    if not steps:
        least = min(even_batch(args), args.rollout.batch_size * samples)
        hint = (
            f"has {prompts} prompts to train on, whose {prompts * samples} responses are too few for a step, which has "
            f"{least} or more; give more prompts, or lower train.batch_size or rollout.micro_batch_size"
        )
        raise ConfigError("data.prompt_dataset", args.data.prompt_dataset, hint)
    return steps
