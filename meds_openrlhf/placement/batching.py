"""The sizes of a run's batches, and the numbers of ranks among which they divide. Pure.

OpenRLHF joins the responses of a step to rollout micro-batches and gives every data-parallel rank of a model a run of
``ceil(micro-batches / ranks)`` of them; the last rank gets the rest. A rank trains on its responses in train
micro-batches; ``train_batch`` responses of all ranks are a mini-batch, a step of the optimizer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import lcm
from types import SimpleNamespace

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.roles import role_requests


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The sizes of a run's batches, in responses unless said."""

    prompts: int  # of a step
    samples: int  # to a prompt
    rollout_micro_batch: int
    train_batch: int
    train_micro_batch: int
    dynamic: bool = False  # micro-batches have up to a number of tokens instead, and their sizes here do not count
    duplicates: int = 1  # ranks that get the same responses: ring attention x tensor parallelism

    @classmethod
    def of(cls, args: SimpleNamespace) -> Batching:
        """Return the sizes in OpenRLHF's arguments."""
        return cls(
            prompts=args.rollout.batch_size,
            samples=args.rollout.n_samples_per_prompt,
            rollout_micro_batch=args.rollout.micro_batch_size,
            train_batch=args.train.batch_size,
            train_micro_batch=args.train.micro_batch_size,
            dynamic=args.train.dynamic_batch_enable,
            duplicates=args.ds.ring_attn_size * args.ds.tensor_parallel_size,
        )

    @property
    def responses(self) -> int:
        """The responses of a step."""
        return self.prompts * self.samples

    def parallel(self, ranks: int) -> int:
        """Return how many of ``ranks`` get different responses."""
        return ranks // self.duplicates

    def takes(self, ranks: int, role: str = "policy") -> bool:
        """Return whether a model works with ``ranks`` ranks, which wait for each other and so need equal work.

        OpenRLHF's parser asserts a rollout micro-batch for every rank. DeepSpeed asserts that the mini-batch is micro-
        batch x accumulation x data-parallel ranks, of all models but those that are trained with dynamic batches.
        """
        parallel = self.parallel(ranks)
        if ranks < 1 or ranks % self.duplicates or self.responses // self.rollout_micro_batch < parallel:
            return False
        if self.dynamic and role in ("policy", "critic"):
            return self.train_batch % parallel == 0
        if self.train_batch % (self.train_micro_batch * parallel):
            return False
        is_equal = parallel == 1 or self.responses % (self.rollout_micro_batch * parallel) == 0
        return self.dynamic or (is_equal and self.responses // parallel >= self.train_micro_batch)

    def even_counts(self, roles: Collection[str] = ("policy",)) -> list[int]:
        """Return all numbers of ranks that every role's model can have and among which all batches divide evenly."""
        parallel = [n for n in range(1, self.train_batch + 1) if self.train_batch % n == self.responses % n == 0]
        models = [role for role in roles if role != "engines"]
        return [n * self.duplicates for n in parallel if all(self.takes(n * self.duplicates, role) for role in models)]

    def even_batch(self, parallel: Iterable[int]) -> int:
        """Return the number of responses that makes whole mini-batches, whole groups and equal work for all ranks.

        ``parallel`` has the data-parallel ranks of each model. The last batch of an epoch is cut to a multiple of it:
        ranks with unequal work would wait for each other forever, and DeepSpeed would carry the gradients of a partial
        mini-batch into the next step.
        """
        pieces = [] if self.dynamic else [self.rollout_micro_batch * ranks for ranks in parallel]
        return lcm(self.train_batch, self.samples, *pieces)

    def steps_of_an_epoch(self, prompts: int, even_batch: int) -> int:
        """Return how many steps an epoch over ``prompts`` has, if no prompt is filtered out."""
        whole, left = divmod(prompts, self.prompts)
        return whole + (left * self.samples >= even_batch)

    def require_whole_minibatches(self, of_prompts: bool) -> None:
        """Raise ConfigError if a step is not whole mini-batches: OpenRLHF would drop the rest, or train on it later.

        With ``of_prompts`` they must have all responses to their prompts.
        """
        if self.responses % self.train_batch or (of_prompts and self.train_batch % self.samples):
            hint = f"must divide the {self.responses} responses of a step (rollout.batch_size x n_samples_per_prompt)"
            if of_prompts:
                hint += f" and, for meds.policy.minibatches=prompts, be a multiple of the {self.samples} to a prompt"
            raise ConfigError("train.batch_size", self.train_batch, f"{hint}.")

    def __str__(self) -> str:
        rollout = f"{self.responses} responses in micro-batches of {self.rollout_micro_batch}"
        return f"{rollout}, train.batch_size {self.train_batch} in micro-batches of {self.train_micro_batch}"


def listed(counts: list[int]) -> str:
    """Format counts as in ``1, 2, 4, 8, 16, … 256``."""
    return ", ".join(map(str, counts)) if len(counts) <= 6 else f"{', '.join(map(str, counts[:5]))}, … {counts[-1]}"


def even_batch(args: SimpleNamespace) -> int:
    """Return the number that divides the number of responses in an epoch's last batch (see `Batching`)."""
    return Batching.of(args).even_batch(ranks_of_roles(args))


def ranks_of_roles(args: SimpleNamespace) -> list[int]:
    """Return for policy, critic, reference and reward how many of their ranks get different samples."""
    batching = Batching.of(args)
    return [batching.parallel(request.gpus) for request in role_requests(args) if request.role != "engines"]


def steps_of_an_epoch(args: SimpleNamespace, prompts: int) -> int:
    """Return the number of training steps in an epoch over ``prompts``, if no prompt is filtered out.

    Raises ConfigError if there would be no step.
    """
    batching, even = Batching.of(args), even_batch(args)
    steps = batching.steps_of_an_epoch(prompts, even)
    if not steps:
        hint = (
            f"has {prompts} prompts to train on, which make {prompts * batching.samples} responses, but a step needs "
            f"{min(even, batching.responses)}. Use more prompts, or lower train.batch_size or rollout.micro_batch_size."
        )
        raise ConfigError("data.prompt_dataset", args.data.prompt_dataset, hint)
    return steps
