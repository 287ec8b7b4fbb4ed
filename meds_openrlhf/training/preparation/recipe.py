"""Converts OpenRLHF's arguments into the plain numbers that placement uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config.schema import RolloutSettings
from meds_openrlhf.placement.model_shape import FoundShape, find_shape
from meds_openrlhf.placement.recipe import Recipe
from meds_openrlhf.training.roles import duplicates, role_requests


def models_of(args: SimpleNamespace) -> dict[str, FoundShape]:
    """Return the shape of each role's model. Reads configurations, no weights."""
    policy = args.actor.model_name_or_path
    others = {
        "critic": args.critic.model_name_or_path,
        "reward": (args.reward.model_name_or_path or policy).split(",")[0],
    }
    names = {request.role: others.get(request.role, policy) for request in role_requests(args)}
    found = {name: find_shape(name) for name in dict.fromkeys(names.values())}
    return {role: found[name] for role, name in names.items()}


def recipe_of(
    args: SimpleNamespace,
    models: Mapping[str, FoundShape],
    given: Mapping[str, Any],
    rollout: RolloutSettings,
) -> Recipe:
    """Return what placement needs to know about a run. ``given`` are the flags that the user set."""
    dynamic = args.train.dynamic_batch_enable
    length: int = args.data.max_len

    def tokens_of(section: SimpleNamespace) -> int:
        """Return the tokens of a micro-batch; a longer sample is one alone."""
        tokens: int = section.max_tokens_per_gpu * duplicates(args) if dynamic else section.micro_batch_size * length
        return max(tokens, length)

    return Recipe(
        roles=tuple(models),
        models=models,
        given=given,
        sharing={request.role: request.shares_with for request in role_requests(args) if request.shares_with},
        zero_stage=args.ds.zero_stage,
        zero_subgroup=args.ds.zpg,
        adam_offload=args.ds.adam_offload,
        gradient_bytes=4 if args.ds.grad_accum_dtype == "fp32" else 2,
        checkpointing=args.actor.gradient_checkpointing_enable,
        entropy=args.actor.entropy_coef is not None,
        lora_rank=args.ds.lora.rank,
        context_parallel=args.ds.ring_attn_size,
        tensor_parallel=args.ds.tensor_parallel_size,
        offloaded=frozenset(role for role, on in _offloads(args).items() if on),
        max_len=length,
        train_tokens=tokens_of(args.train),
        forward_tokens=tokens_of(args.rollout),
        gpu_memory_utilization=args.vllm.gpu_memory_utilization,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        deepspeed_sleeps=args.ds.enable_sleep,
        engines_sleep=args.vllm.enable_sleep,
        train_batch=args.train.batch_size,
        train_micro_batch=args.train.micro_batch_size,
        samples=args.rollout.batch_size * args.rollout.n_samples_per_prompt,
        rollout_micro_batch=args.rollout.micro_batch_size,
        dynamic_batches=dynamic,
    )


def _offloads(args: SimpleNamespace) -> dict[str, bool]:
    return {"reference": args.ref.offload, "reward": args.reward.offload}
