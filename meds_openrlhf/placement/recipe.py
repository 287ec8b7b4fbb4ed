"""The settings of a run that determine its placement and GPU memory, as plain numbers. Pure.

OpenRLHF joins the responses of a step to rollout micro-batches and gives every data-parallel rank of a model a run of
``ceil(micro-batches / ranks)`` of them; the last rank gets the rest. A rank trains on its responses in train
micro-batches; ``train_batch`` responses of all ranks are a mini-batch, a step of the optimizer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.placement.model_shape import FoundShape


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


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """OpenRLHF's settings that determine the placement of roles and their memory."""

    models: Mapping[str, FoundShape]  # by role: policy, engines, and reference, critic and reward if the run has them
    batching: Batching
    given: Mapping[str, Any] = field(default_factory=dict)  # flags that the user set; placement does not change them
    hosts: Mapping[str, str] = field(default_factory=dict)  # by role: the role whose GPUs it uses, if not its own

    zero_stage: int = 2
    zero_subgroup: int = 1  # ZeRO++: the number of ranks that share a second copy of the weights
    adam_offload: bool = False
    gradient_bytes: int = 2
    checkpointing: bool = False
    entropy: bool = False
    lora_rank: int = 0
    context_parallel: int = 1
    tensor_parallel: int = 1  # DeepSpeed's, not the engines'
    offloaded: frozenset[str] = frozenset()  # roles (reference, reward) whose weights are in CPU memory
    deepspeed_sleeps: bool = False
    engines_sleep: bool = False

    max_len: int = 4096
    train_tokens: int = 4096  # of a training micro-batch
    forward_tokens: int = 4096  # of a micro-batch in the log-prob recompute
    gpu_memory_utilization: float = 0.95
    max_num_seqs: int | None = None  # that an engine generates at a time; None: chosen by its KV cache
    max_num_batched_tokens: int | None = None  # of an engine's step; None: chosen by its KV cache
