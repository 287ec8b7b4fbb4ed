"""The settings of a run that determine its placement and GPU memory, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from meds_openrlhf.placement.model_shape import FoundShape


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """OpenRLHF's settings that determine the placement of roles and their memory."""

    roles: tuple[str, ...]
    """Policy, engines, and reference, critic and reward if the run has them."""
    models: Mapping[str, FoundShape]
    """The model of each role."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Flags that the user set, by dotted name; placement does not change them."""

    sharing: Mapping[str, str] = field(default_factory=dict)
    """By role: the role whose GPUs it uses, where it has none of its own."""
    zero_stage: int = 2
    zero_subgroup: int = 1
    """ZeRO++: the number of ranks that share a second copy of the weights."""
    adam_offload: bool = False
    gradient_bytes: int = 2
    checkpointing: bool = False
    entropy: bool = False
    lora_rank: int = 0
    context_parallel: int = 1
    tensor_parallel: int = 1
    """DeepSpeed's tensor parallel size, not the engines'."""
    offloaded: frozenset[str] = frozenset()
    """Roles (reference, reward) whose weights are offloaded to CPU memory."""

    max_len: int = 4096
    train_tokens: int = 4096
    """Tokens of a training micro-batch."""
    forward_tokens: int = 4096
    """Tokens of a micro-batch in the log-prob recompute."""
    gpu_memory_utilization: float = 0.95
    max_num_seqs: int | None = None
    """Sequences that an engine generates at a time; None: chosen by its KV cache."""
    max_num_batched_tokens: int | None = None
    """Tokens of an engine's step; None: chosen by its KV cache."""
    deepspeed_sleeps: bool = False
    engines_sleep: bool = False

    train_batch: int = 128
    train_micro_batch: int = 1
    samples: int = 1024
    """Responses per step."""
    rollout_micro_batch: int = 1
    dynamic_batches: bool = False

    @property
    def batches(self) -> str:
        """A description of the batches that are split over ranks."""
        by = "" if self.dynamic_batches else f" by micro-batches of {self.train_micro_batch}"
        return f"train.batch_size {self.train_batch}{by}, {self.samples} responses by {self.rollout_micro_batch}"

    def takes(self, ranks: int, role: str = "policy") -> bool:
        """Return whether a DeepSpeed model with ``ranks`` ranks passes OpenRLHF's and DeepSpeed's batch checks.

        DeepSpeed asserts that the training batch is micro-batch x accumulation x data-parallel ranks, except for models
        trained with dynamic batches. OpenRLHF distributes a step's responses over the ranks of the policy and the
        critic, which train in lockstep: each rank needs the same number of micro-batches, at least one.
        """
        duplicates = self.context_parallel * self.tensor_parallel
        if ranks < 1 or ranks % duplicates:
            return False
        parallel, trained = ranks // duplicates, role in ("policy", "critic")
        if trained and self.dynamic_batches:
            least = self.train_batch >= parallel and self.samples >= parallel
            # OpenRLHF's parser counts the policy's work in micro-batches, although dynamic batches do not use them.
            return least and (role != "policy" or self.samples // self.rollout_micro_batch >= parallel)
        if self.train_batch % (self.train_micro_batch * parallel):
            return False
        return not trained or self._steps_are_equal(parallel)

    def splits_evenly(self, ranks: int) -> bool:
        """Return whether all batches split evenly over ``ranks`` ranks of every DeepSpeed model, as sizing requires."""
        parallel = ranks // (self.context_parallel * self.tensor_parallel)
        if not all(self.takes(ranks, role) for role in self.roles if role != "engines"):
            return False
        if self.dynamic_batches:
            return self.train_batch % parallel == 0 and self.samples % parallel == 0
        return (self.samples // self.rollout_micro_batch) % parallel == 0

    def even_counts(self) -> list[int]:
        """Return every number of ranks over which the batches split evenly, in ascending order."""
        duplicates = self.context_parallel * self.tensor_parallel
        most = min(self.train_batch, self.samples)
        return [ranks for ranks in range(duplicates, most * duplicates + 1, duplicates) if self.splits_evenly(ranks)]

    def _steps_are_equal(self, parallel: int) -> bool:
        """Return whether the first rank and the last, which gets the rest, train on equally many micro-batches, >= 1.

        OpenRLHF distributes micro-batches of the rollout in runs of ``ceil(pieces / ranks)``.
        """
        if self.samples // self.rollout_micro_batch < parallel:
            return False
        run = ceil(ceil(self.samples / self.rollout_micro_batch) / parallel) * self.rollout_micro_batch
        first, last = min(run, self.samples), self.samples - run * (parallel - 1)
        return last // self.train_micro_batch == first // self.train_micro_batch >= 1
