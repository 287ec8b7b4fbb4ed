"""The settings of a run that determine its placement and GPU memory, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meds_openrlhf.placement.batches import Batching
from meds_openrlhf.placement.model_shape import FoundShape


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
