"""Estimates memory per rank before anything runs, on its GPU and on its node.

All sizes are in bytes, for P parameters, W ranks, and T tokens of a micro-batch.

Policy and critic, by ZeRO stage (DeepSpeed's own estimators `estimate_zero2_model_states_mem_needs` and
`estimate_zero3_model_states_mem_needs`; Rajbhandari et al. 2020, "ZeRO", section 3):

    weights     2 P                  stage 3: 2 P / W, and up to 1e9 gathered parameters (stage3_max_live_parameters)
    gradients   2 P (4 P in fp32)    stages 2, 3: divided by W
    optimizer   12 P                 fp32 weights and Adam's two moments; stages 1 to 3: divided by W
    step        4 P                  gradients in fp32 while Adam runs; divided by W, in stage 3 by parts of 1e9
    buckets     2e9                  gradients in transfer (two buckets with reduce_bucket_size 5e8)

With ds.adam_offload, gradients, optimizer and step are in CPU memory. With LoRA, only its matrices are trained.

Activations of training (Korthikanti et al. 2022, "Reducing activation recomputation", section 4, for a gated MLP and
flash attention): a layer stores T (20 hidden + 4 kv + 8 ffn). Without gradient checkpointing all layers do; with it,
each layer stores its input, 2 T hidden, and one layer at a time stores the rest. Logits: OpenRLHF creates bf16 logits
and a float32 copy, and the backward pass a gradient of each: 12 T vocabulary (16 with the entropy); the recompute,
which has no gradients, takes 6 T vocabulary.

Engine: vLLM allocates gpu_memory_utilization of the GPU: weights 2 P / TP, about 3 GB of work space, and KV cache in
the rest, 4 layers x kv heads x head_dim per token / TP. In mode colocate it sleeps while others work: level 1 moves
weights to the CPU and drops the cache (vLLM, "Sleep mode"); its CUDA context, graphs and NCCL buffers stay: 3 to 5 GB.

Node: weights of sleeping engines, tensor by tensor in pinned memory, which torch rounds up to a power of two (c10,
`CachingHostAllocator`; `pinned_max_round_threshold_mb` would avoid it, but corrupts contents): 1.2 to 1.9 times 2 P /
TP. Of a rank 16 P / W with ds.adam_offload (fp32 weights, moments, gradients), 14 P / W (16 with fp32 gradients) if
DeepSpeed's states sleep; weights that are offloaded. The processes themselves and Ray's object store are not counted.

Every process takes about 2 GB more for CUDA's context, NCCL and allocator fragmentation; for an engine, vLLM's share
includes half of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2

from meds_openrlhf.placement.inventory import GB
from meds_openrlhf.placement.model_shape import ModelShape
from meds_openrlhf.placement.recipe import Recipe

PROCESS, BESIDE_ENGINE, ENGINE_WORK_SPACE, SLEEPING_ENGINE = 2 * GB, 1 * GB, 3 * GB, 5 * GB
GATHERED_PARAMETERS, BUCKETS = 1_000_000_000, 2_000_000_000
# vLLM's default limits of an engine on an H100 or H200, and on other GPUs.
MOST_SEQUENCES, MOST_TOKENS = 1024, 16_384
USUAL_SEQUENCES, USUAL_TOKENS = 256, 8192


@dataclass(frozen=True)
class EngineLimits:
    """What an engine works on at a time; OpenRLHF's way to start vLLM leaves the limits at 128 and 2,048."""

    max_num_seqs: int
    max_num_batched_tokens: int
    held: float | None = None  # full-length sequences in the KV cache; None: unknown, below 1: it cannot start


@dataclass(frozen=True)
class Footprint:
    """A rank's memory in bytes: on its GPU at its peak and while others work there, and on its node."""

    peak: float
    resting: float
    on_node: float = 0.0


def footprints(
    recipe: Recipe, ranks: Mapping[str, int], gpu_memory: float, tensor_parallel: int = 1
) -> dict[str, Footprint]:
    """Return each role's footprint on a GPU with ``gpu_memory`` bytes, by its ``ranks``; empty for an unknown model.

    ``tensor_parallel`` is the engines'.
    """
    shapes = {role: model.shape for role, model in recipe.models.items() if model.shape is not None}
    if len(shapes) < len(recipe.models):
        return {}
    found = {role: _deepspeed(recipe, shape, role, ranks[role]) for role, shape in shapes.items() if role != "engines"}
    if "engines" in shapes:
        peak = recipe.gpu_memory_utilization * gpu_memory + BESIDE_ENGINE
        asleep = Footprint(peak, SLEEPING_ENGINE, _pinned_weights(shapes["engines"], tensor_parallel))
        found["engines"] = asleep if recipe.engines_sleep else Footprint(peak, peak)
    return found


def together(parts: Sequence[Footprint]) -> float:
    """Return the peak on a GPU that roles share: one role works at a time while the others rest."""
    return sum(part.resting for part in parts) + max(part.peak - part.resting for part in parts)


def engine_limits(recipe: Recipe, gpu_memory: float | None, tensor_parallel: int) -> EngineLimits:
    """Return the limits of an engine on GPUs with ``gpu_memory`` bytes, None if that is not known.

    A running sequence is half generated on average, so twice as many fit; if they do not, vLLM recomputes some.
    """
    shape, held = recipe.models["engines"].shape, None
    sequences, tokens = USUAL_SEQUENCES, USUAL_TOKENS
    if shape is not None and gpu_memory is not None:
        free = recipe.gpu_memory_utilization * gpu_memory - 2 * shape.parameters / tensor_parallel - ENGINE_WORK_SPACE
        heads = max(1, shape.kv_heads / tensor_parallel)  # with fewer heads than GPUs, each GPU stores one head
        held = max(0.0, free) / (4 * shape.layers * heads * shape.head_dim * recipe.max_len)
        sequences, tokens = max(1, min(MOST_SEQUENCES, int(2 * held))), min(MOST_TOKENS, int(held * recipe.max_len))
    # A running sequence takes a token of every step.
    sequences = recipe.max_num_seqs or min(sequences, recipe.max_num_batched_tokens or sequences)
    return EngineLimits(sequences, recipe.max_num_batched_tokens or max(tokens, sequences), held)


def _pinned_weights(shape: ModelShape, tensor_parallel: int) -> float:
    """Return the bytes of a sleeping engine's weights on its node; vLLM joins some of a layer's tensors."""
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    widths = (query + 2 * key_value, query, 2 * shape.ffn, shape.ffn)
    tensors = [*widths] * shape.layers + [shape.vocabulary] * (1 if shape.tied else 2)
    return sum(2.0 ** ceil(log2(2 * width * shape.hidden / tensor_parallel)) for width in tensors)


def _deepspeed(recipe: Recipe, shape: ModelShape, role: str, ranks: int) -> Footprint:
    """Policy and critic have gradients and an optimizer; critic and reward have a value head instead of logits."""
    vocabulary = shape.vocabulary if role in ("policy", "reference") else 1
    weights = 2 * shape.parameters / (ranks if recipe.zero_stage == 3 else recipe.tensor_parallel)
    if recipe.zero_stage == 3 and recipe.zero_subgroup > 1:
        weights += 2 * shape.parameters / recipe.zero_subgroup
    gathered = 2 * min(shape.parameters, GATHERED_PARAMETERS) if recipe.zero_stage == 3 else 0
    recompute = _layer(shape, recipe.forward_tokens) / 2 + 6 * recipe.forward_tokens * vocabulary
    recompute /= recipe.context_parallel
    on_gpu, on_node = (0.0, weights) if role in recipe.offloaded else (weights, 0.0)
    base, states = PROCESS + on_gpu, 0.0
    peak = base + gathered + recompute
    if role in ("policy", "critic"):
        states = _training_states(recipe, shape, ranks)
        peak = base + gathered + states + max(recompute, _training_work(recipe, shape, vocabulary))
        kept = 16 if recipe.adam_offload else 12 + recipe.gradient_bytes if recipe.deepspeed_sleeps else 0
        on_node = kept * _trainable(recipe, shape) / ranks
    asleep = recipe.deepspeed_sleeps and not recipe.adam_offload
    return Footprint(peak, base if asleep else base + states, on_node)


def _training_states(recipe: Recipe, shape: ModelShape, ranks: int) -> float:
    """Return the bytes of gradients, optimizer and the step's copies."""
    if recipe.adam_offload:
        return BUCKETS
    trained, share = _trainable(recipe, shape) / recipe.tensor_parallel, _trainable(recipe, shape) / ranks
    sharded = [share if recipe.zero_stage >= stage else trained for stage in (1, 2)]
    step = 4 * (min(share, GATHERED_PARAMETERS) if recipe.zero_stage == 3 else sharded[0])
    return recipe.gradient_bytes * sharded[1] + 12 * sharded[0] + step + min(BUCKETS, 4 * trained)


def _trainable(recipe: Recipe, shape: ModelShape) -> float:
    if not recipe.lora_rank:
        return shape.parameters
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    widths = 2 * (shape.hidden + query) + 2 * (shape.hidden + key_value) + 3 * (shape.hidden + shape.ffn)
    return recipe.lora_rank * widths * shape.layers


def _layer(shape: ModelShape, tokens: int) -> float:
    """Return the bytes that a layer stores for the backward pass."""
    return tokens * (20 * shape.hidden + 4 * shape.kv_heads * shape.head_dim + 8 * shape.ffn)


def _training_work(recipe: Recipe, shape: ModelShape, vocabulary: int) -> float:
    tokens, layer = recipe.train_tokens, _layer(shape, recipe.train_tokens)
    kept = 2 * tokens * shape.hidden * shape.layers + layer if recipe.checkpointing else layer * shape.layers
    return (kept + (16 if recipe.entropy else 12) * tokens * vocabulary) / recipe.context_parallel
