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
from types import SimpleNamespace

from meds_openrlhf.placement.batching import Batching
from meds_openrlhf.placement.inventory import GB
from meds_openrlhf.placement.model_shape import FoundShape, ModelShape
from meds_openrlhf.placement.roles import SECTIONS

PROCESS, BESIDE_ENGINE, SLEEPING_ENGINE = 2 * GB, 1 * GB, 5 * GB
GATHERED_PARAMETERS, BUCKETS = 1_000_000_000, 2_000_000_000


@dataclass(frozen=True)
class Footprint:
    """A rank's memory in bytes: on its GPU at its peak and while others work there, and on its node."""

    peak: float
    resting: float
    on_node: float = 0.0


def footprints(
    args: SimpleNamespace, models: Mapping[str, FoundShape], ranks: Mapping[str, int], gpu_memory: float
) -> dict[str, Footprint]:
    """Return each role's footprint on a GPU with ``gpu_memory`` bytes, by its ``ranks``; empty for an unknown model."""
    shapes = {role: model.shape for role, model in models.items() if model.shape is not None}
    if len(shapes) < len(models):
        return {}
    found = {role: _deepspeed(args, shape, role, ranks[role]) for role, shape in shapes.items() if role != "engines"}
    if "engines" in shapes:
        peak = args.vllm.gpu_memory_utilization * gpu_memory + BESIDE_ENGINE
        asleep = Footprint(peak, SLEEPING_ENGINE, _pinned_weights(shapes["engines"], args.vllm.tensor_parallel_size))
        found["engines"] = asleep if args.vllm.enable_sleep else Footprint(peak, peak)
    return found


def together(parts: Sequence[Footprint]) -> float:
    """Return the peak on a GPU that roles share: one role works at a time while the others rest."""
    return sum(part.resting for part in parts) + max(part.peak - part.resting for part in parts)


def _pinned_weights(shape: ModelShape, tensor_parallel: int) -> float:
    """Return the bytes of a sleeping engine's weights on its node; vLLM joins some of a layer's tensors."""
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    widths = (query + 2 * key_value, query, 2 * shape.ffn, shape.ffn)
    tensors = [*widths] * shape.layers + [shape.vocabulary] * (1 if shape.tied else 2)
    return sum(2.0 ** ceil(log2(2 * width * shape.hidden / tensor_parallel)) for width in tensors)


def _deepspeed(args: SimpleNamespace, shape: ModelShape, role: str, ranks: int) -> Footprint:
    """Policy and critic have gradients and an optimizer; critic and reward have a value head instead of logits."""
    ds, tokens = args.ds, _tokens_of(args, args.rollout)
    vocabulary = shape.vocabulary if role in ("policy", "reference") else 1
    weights = 2 * shape.parameters / (ranks if ds.zero_stage == 3 else ds.tensor_parallel_size)
    if ds.zero_stage == 3 and ds.zpg > 1:
        weights += 2 * shape.parameters / ds.zpg
    gathered = 2 * min(shape.parameters, GATHERED_PARAMETERS) if ds.zero_stage == 3 else 0
    recompute = (_layer(shape, tokens) / 2 + 6 * tokens * vocabulary) / ds.ring_attn_size
    is_offloaded = role in ("reference", "reward") and getattr(args, SECTIONS[role]).offload
    on_gpu, on_node = (0.0, weights) if is_offloaded else (weights, 0.0)
    base, states = PROCESS + on_gpu, 0.0
    peak = base + gathered + recompute
    if role in ("policy", "critic"):
        states = _training_states(args, shape, ranks)
        peak = base + gathered + states + max(recompute, _training_work(args, shape, vocabulary))
        kept = 16 if ds.adam_offload else 12 + _gradient_bytes(args) if ds.enable_sleep else 0
        on_node = kept * _trainable(args, shape) / ranks
    asleep = ds.enable_sleep and not ds.adam_offload
    return Footprint(peak, base if asleep else base + states, on_node)


def _tokens_of(args: SimpleNamespace, section: SimpleNamespace) -> int:
    """Return the tokens of a micro-batch of a section (rollout, train); a longer sample is a micro-batch of its own."""
    batching, longest = Batching.of(args), int(args.data.max_len)
    if not batching.dynamic:
        return int(section.micro_batch_size) * longest
    return max(int(section.max_tokens_per_gpu * batching.duplicates), longest)


def _gradient_bytes(args: SimpleNamespace) -> int:
    return 4 if args.ds.grad_accum_dtype == "fp32" else 2


def _training_states(args: SimpleNamespace, shape: ModelShape, ranks: int) -> float:
    """Return the bytes of gradients, optimizer and the step's copies."""
    stage = args.ds.zero_stage
    if args.ds.adam_offload:
        return BUCKETS
    trained, share = _trainable(args, shape) / args.ds.tensor_parallel_size, _trainable(args, shape) / ranks
    optimizer, gradients = (share if stage >= sharding else trained for sharding in (1, 2))
    step = 4 * (min(share, GATHERED_PARAMETERS) if stage == 3 else optimizer)
    return float(_gradient_bytes(args) * gradients + 12 * optimizer + step + min(BUCKETS, 4 * trained))


def _trainable(args: SimpleNamespace, shape: ModelShape) -> float:
    if not args.ds.lora.rank:
        return shape.parameters
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    widths = 2 * (shape.hidden + query) + 2 * (shape.hidden + key_value) + 3 * (shape.hidden + shape.ffn)
    return float(args.ds.lora.rank * widths * shape.layers)


def _layer(shape: ModelShape, tokens: int) -> float:
    """Return the bytes that a layer stores for the backward pass."""
    return tokens * (20 * shape.hidden + 4 * shape.kv_heads * shape.head_dim + 8 * shape.ffn)


def _training_work(args: SimpleNamespace, shape: ModelShape, vocabulary: int) -> float:
    tokens = _tokens_of(args, args.train)
    layer, inputs = _layer(shape, tokens), 2 * tokens * shape.hidden * shape.layers
    kept = inputs + layer if args.actor.gradient_checkpointing_enable else layer * shape.layers
    logits = (12 if args.actor.entropy_coef is None else 16) * tokens * vocabulary
    return float(kept + logits) / float(args.ds.ring_attn_size)
