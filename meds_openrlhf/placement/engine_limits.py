"""How much an engine works on at a time, by what its KV cache holds. Pure.

OpenRLHF's way to start vLLM leaves the limits at 128 sequences and 2,048 tokens, whatever the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from meds_openrlhf.config.schema import RolloutSettings
from meds_openrlhf.placement.inventory import GB
from meds_openrlhf.placement.model_shape import ModelShape

WORK_SPACE = 3 * GB  # of an engine, beside its weights and the cache
# vLLM's default limits of an engine on an H100 or H200, and on other GPUs.
MOST_SEQUENCES, MOST_TOKENS = 1024, 16_384
USUAL_SEQUENCES, USUAL_TOKENS = 256, 8192


@dataclass(frozen=True)
class EngineLimits:
    """What an engine works on at a time."""

    max_num_seqs: int
    max_num_batched_tokens: int
    held: float | None = None  # full-length sequences in the KV cache; None: unknown, below 1: it cannot start


def engine_limits(
    args: SimpleNamespace, shape: ModelShape | None, wanted: RolloutSettings, gpu_memory_gb: float | None
) -> EngineLimits:
    """Return the limits of an engine on GPUs with ``gpu_memory_gb``; this and the model's ``shape`` may be unknown.

    Limits that the user ``wanted`` hold. A running sequence is half generated on average, so twice as many fit; if they
    do not, vLLM recomputes some.
    """
    width, longest, held = args.vllm.tensor_parallel_size, args.data.max_len, None
    sequences, tokens = USUAL_SEQUENCES, USUAL_TOKENS
    if shape is not None and gpu_memory_gb is not None:
        share = args.vllm.gpu_memory_utilization * gpu_memory_gb * GB
        heads = max(1, shape.kv_heads / width)  # with fewer heads than GPUs, each GPU stores one head
        free = max(0.0, share - 2 * shape.parameters / width - WORK_SPACE)
        held = free / (4 * shape.layers * heads * shape.head_dim * longest)
        sequences, tokens = max(1, min(MOST_SEQUENCES, int(2 * held))), min(MOST_TOKENS, int(held * longest))
    # A running sequence takes a token of every step.
    sequences = wanted.max_num_seqs or min(sequences, wanted.max_num_batched_tokens or sequences)
    return EngineLimits(sequences, wanted.max_num_batched_tokens or max(tokens, sequences), held)
