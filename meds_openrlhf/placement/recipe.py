"""What a run asks of its GPUs, in plain numbers: the settings that placement and memory follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from meds_openrlhf.placement.model_shape import FoundShape


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """OpenRLHF's settings as far as they decide where roles go and how much memory they take."""

    roles: tuple[str, ...]
    """Policy, engines, and those of reference, critic and reward that the run has."""
    models: Mapping[str, FoundShape]
    """The model of each role."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Flags that the user set, by their dotted names: they are kept."""

    asynchronous: bool = False
    zero_stage: int = 2
    zero_subgroup: int = 1
    """ZeRO++: weights are kept once more within so many ranks."""
    adam_offload: bool = False
    gradient_bytes: int = 2
    checkpointing: bool = False
    entropy: bool = False
    lora_rank: int = 0
    context_parallel: int = 1
    tensor_parallel: int = 1
    """DeepSpeed's, not the engines'."""
    offloaded: frozenset[str] = frozenset()
    """Roles among reference and reward whose weights wait in the CPU's memory."""

    max_len: int = 4096
    train_tokens: int = 4096
    """Tokens of one micro-batch that is trained on."""
    forward_tokens: int = 4096
    """Tokens of one micro-batch whose log-probs are recomputed."""
    gpu_memory_utilization: float = 0.95
    deepspeed_can_sleep: bool = True
    """Its optimizer can be moved out of the way: Adam under ZeRO."""
    deepspeed_sleeps: bool = False
    engines_sleep: bool = False

    train_batch: int = 128
    train_micro_batch: int = 1
    samples: int = 1024
    """Responses of one step."""
    rollout_micro_batch: int = 1
    dynamic_batches: bool = False

    @property
    def batches(self) -> str:
        """The batches that are split over ranks, in words."""
        by = "" if self.dynamic_batches else f" by micro-batches of {self.train_micro_batch}"
        return f"train.batch_size {self.train_batch}{by}, {self.samples} responses by {self.rollout_micro_batch}"

    def takes(self, ranks: int, role: str = "policy") -> bool:
        """Whether a DeepSpeed model of so many ranks gets through OpenRLHF's and DeepSpeed's checks of the batches.

        DeepSpeed asserts that the training batch is micro-batch x accumulation x data-parallel ranks, except for what
        is trained with dynamic batches. OpenRLHF deals a step's responses to the policy's and the critic's ranks, which
        then train together: as many micro-batches each, one at least.
        """
        duplicates = self.context_parallel * self.tensor_parallel
        if ranks < 1 or ranks % duplicates:
            return False
        parallel, trained = ranks // duplicates, role in ("policy", "critic")
        if trained and self.dynamic_batches:
            least = self.train_batch >= parallel and self.samples >= parallel
            # OpenRLHF's parser counts the policy's pieces in micro-batches, though nothing is split that way here.
            return least and (role != "policy" or self.samples // self.rollout_micro_batch >= parallel)
        if self.train_batch % (self.train_micro_batch * parallel):
            return False
        return not trained or self._steps_are_equal(parallel)

    def splits_evenly(self, ranks: int) -> bool:
        """Whether so many ranks of every DeepSpeed model get equal parts of all batches: what counts are sized to."""
        parallel = ranks // (self.context_parallel * self.tensor_parallel)
        if not all(self.takes(ranks, role) for role in self.roles if role != "engines"):
            return False
        if self.dynamic_batches:
            return self.train_batch % parallel == 0 and self.samples % parallel == 0
        return (self.samples // self.rollout_micro_batch) % parallel == 0

    def even_counts(self) -> list[int]:
        """Every number of ranks that the batches can be split evenly over, the smallest first."""
        duplicates = self.context_parallel * self.tensor_parallel
        most = min(self.train_batch, self.samples)
        return [ranks for ranks in range(duplicates, most * duplicates + 1, duplicates) if self.splits_evenly(ranks)]

    def _steps_are_equal(self, parallel: int) -> bool:
        """Whether the first and the last rank, which gets what is left, train on as many micro-batches, one at least.

        OpenRLHF deals micro-batches of the rollout in runs of ``ceil(pieces / ranks)``.
        """
        if self.samples // self.rollout_micro_batch < parallel:
            return False
        run = ceil(ceil(self.samples / self.rollout_micro_batch) / parallel) * self.rollout_micro_batch
        first, last = min(run, self.samples), self.samples - run * (parallel - 1)
        return last // self.train_micro_batch == first // self.train_micro_batch >= 1
