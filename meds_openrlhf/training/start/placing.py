"""Computes OpenRLHF's arguments with all counts, and the placement plan, from flags and the cluster's inventory."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.config.schema import RolloutSettings
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.model_shape import FoundShape, find_shape
from meds_openrlhf.placement.modes import mode_flags
from meds_openrlhf.placement.plan import beside_memory, make_plan
from meds_openrlhf.placement.recipe import Recipe
from meds_openrlhf.placement.report import PlanReport, report
from meds_openrlhf.placement.sizing import SECTIONS, Room, require_splittable_batches, size
from meds_openrlhf.training.host.openrlhf import (
    data_parallel_ranks,
    duplicates,
    parse_openrlhf_arguments,
    role_requests,
)
from meds_openrlhf.training.start import checks

CONTROLLER_CPUS = 1
# Placeholders for counts that depend on the cluster, because OpenRLHF's parser checks all counts together.
PROVISIONAL = {
    **{f"{section}.{count}": 1 for section in SECTIONS.values() for count in ("num_nodes", "num_gpus_per_node")},
    "vllm.num_engines": 1,
    "vllm.tensor_parallel_size": 1,
}


@dataclass(frozen=True)
class Placed:
    """A run's arguments with all counts, and the placement of its roles."""

    args: SimpleNamespace
    report: PlanReport


def provisional_arguments(config: RunConfig, flags: Mapping[str, Any]) -> SimpleNamespace:
    """Return OpenRLHF's arguments before the cluster is known; in mode `flags` they are final.

    Raises ConfigError for flags that OpenRLHF rejects or fails on, or that contradict the mode.
    """
    mode = config.meds.placement.mode
    added = mode_flags(mode, flags)
    if mode != "flags":
        added |= {key: count for key, count in PROVISIONAL.items() if flags.get(key) is None}
    for check in checks.OF_FLAGS:
        check(config, {**flags, **added})
    # The parser prints its remarks again for the final counts.
    with redirect_stdout(io.StringIO()) if added else nullcontext():
        args = parse_openrlhf_arguments({**flags, **added})
    for ask in checks.OF_ARGUMENTS:
        ask(config, args)
    return args


def place_flags(
    config: RunConfig,
    flags: Mapping[str, Any],
    provisional: SimpleNamespace,
    nodes: Sequence[Node],
    models: Mapping[str, FoundShape],
    saved_ranks: Mapping[str, int] | None = None,
    sized_to: Sequence[Node] | None = None,
) -> Placed:
    """Choose missing counts for ``sized_to``, by default ``nodes``, and plan the placement on ``nodes``.

    ``provisional`` is the result of ``provisional_arguments`` for the flags. Raises ConfigError, or its subclass
    Shortage if the cluster is too small.
    """
    draft = recipe_of(provisional, models, flags, config.meds.rollout)
    shards = config.meds.memory.shards if config.meds.enabled else 0
    room = Room.of(beside_memory(nodes if sized_to is None else sized_to, shards), CONTROLLER_CPUS)
    sizing = size(draft, config.meds.placement.mode, room, saved_ranks)
    args = parse_openrlhf_arguments({**flags, **sizing.flags}) if sizing.flags else provisional
    recipe = recipe_of(args, models, flags, config.meds.rollout)
    require_saved_ranks(args, saved_ranks or {})
    require_splittable_batches(recipe, _ranks(args), sizing.flags)
    if config.meds.policy.minibatches == "prompts":
        _require_even_minibatches(args)
    plan = make_plan(role_requests(args), nodes, shards, CONTROLLER_CPUS)
    return Placed(args, report(plan, sizing, recipe))


def _require_even_minibatches(args: SimpleNamespace) -> None:
    """Raise ConfigError if a mini-batch of whole prompts cannot be dealt evenly to the policy's ranks."""
    ranks = data_parallel_ranks(args)
    if args.train.batch_size % ranks:
        hint = f"cannot be dealt evenly to {ranks} policy ranks; take a multiple of them, or mini-batches of responses"
        raise ConfigError("train.batch_size", args.train.batch_size, hint)


def _ranks(args: SimpleNamespace) -> dict[str, int]:
    """Return the number of ranks of each role that DeepSpeed runs."""
    return {request.role: request.gpus for request in role_requests(args) if request.role in SECTIONS}


def require_saved_ranks(args: SimpleNamespace, saved_ranks: Mapping[str, int]) -> None:
    """Raise ConfigError if the number of ranks differs from the checkpoint's, which DeepSpeed cannot load then."""
    requests = {request.role: request for request in role_requests(args)}
    for role, saved in saved_ranks.items():
        request = requests.get(role)
        if request is not None and request.gpus != saved and not args.ds.use_universal_ckpt:
            raise ConfigError(
                f"{SECTIONS[role]}.num_gpus_per_node",
                request.block_gpus,
                f"makes {request.gpus} {role} ranks, but the checkpoint that the run goes on from was saved by {saved}"
                f", and DeepSpeed loads it with as many only; give {SECTIONS[role]}.num_nodes and num_gpus_per_node so "
                f"that they make {saved}",
            )


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
