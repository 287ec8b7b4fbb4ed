"""Computes OpenRLHF's arguments with all counts, and the placement plan, from flags and the cluster's inventory."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.model_shape import FoundShape, find_shape
from meds_openrlhf.placement.modes import mode_flags
from meds_openrlhf.placement.plan import SECTIONS, beside_memory, make_plan
from meds_openrlhf.placement.recipe import Recipe
from meds_openrlhf.placement.report import PlanReport, report
from meds_openrlhf.placement.sizing import require_batches, size
from meds_openrlhf.training.host.openrlhf import batching_of, parse_openrlhf_arguments, role_requests
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
    meds = config.meds
    shards = meds.memory.shards if meds.enabled else 0
    free = beside_memory(nodes if sized_to is None else sized_to, shards)
    draft = recipe_of(provisional, models, flags, meds)
    sizing = size(draft, meds.placement.mode, free, CONTROLLER_CPUS, saved_ranks)
    args = provisional
    if sizing.flags:
        with redirect_stdout(io.StringIO()):  # the parser repeats its remarks
            args = parse_openrlhf_arguments({**flags, **sizing.flags})
    recipe, requests = recipe_of(args, models, flags, meds), role_requests(args)
    require_saved_ranks(args, saved_ranks or {})
    require_batches(recipe, requests, sizing.flags)
    return Placed(args, report(make_plan(requests, nodes, shards, CONTROLLER_CPUS), sizing, recipe))


def require_saved_ranks(args: SimpleNamespace, saved_ranks: Mapping[str, int]) -> None:
    """Raise ConfigError if the number of ranks differs from the checkpoint's, which DeepSpeed cannot load then."""
    requests = {request.role: request for request in role_requests(args)}
    for role, saved in saved_ranks.items():
        request = requests.get(role)
        if request is not None and request.gpus != saved and not args.ds.use_universal_ckpt:
            hint = (
                f"makes {request.gpus} {role} ranks, but {saved} ranks saved the checkpoint to resume, and DeepSpeed "
                f"loads it only with the same number. Set {SECTIONS[role]}.num_nodes and num_gpus_per_node to make "
                f"{saved} ranks."
            )
            raise ConfigError(request.flag, request.block_gpus, hint)


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
    meds: MedsSettings,
) -> Recipe:
    """Return what placement needs to know about a run. ``given`` are the flags that the user set."""
    batching = replace(batching_of(args), whole_prompts=meds.policy.minibatches == "prompts")
    length: int = args.data.max_len

    def tokens_of(section: SimpleNamespace) -> int:
        """Return the tokens of a micro-batch; a longer sample is one alone."""
        if not batching.dynamic:
            return int(section.micro_batch_size * length)
        return max(int(section.max_tokens_per_gpu * batching.duplicates), length)

    return Recipe(
        models=models,
        batching=batching,
        given=given,
        hosts={request.role: request.shares_with for request in role_requests(args) if request.shares_with},
        zero_stage=args.ds.zero_stage,
        zero_subgroup=args.ds.zpg,
        adam_offload=args.ds.adam_offload,
        gradient_bytes=4 if args.ds.grad_accum_dtype == "fp32" else 2,
        checkpointing=args.actor.gradient_checkpointing_enable,
        entropy=args.actor.entropy_coef is not None,
        lora_rank=args.ds.lora.rank,
        context_parallel=args.ds.ring_attn_size,
        tensor_parallel=args.ds.tensor_parallel_size,
        offloaded=frozenset(role for role in ("reference", "reward") if getattr(args, SECTIONS[role]).offload),
        max_len=length,
        train_tokens=tokens_of(args.train),
        forward_tokens=tokens_of(args.rollout),
        gpu_memory_utilization=args.vllm.gpu_memory_utilization,
        max_num_seqs=meds.rollout.max_num_seqs,
        max_num_batched_tokens=meds.rollout.max_num_batched_tokens,
        deepspeed_sleeps=args.ds.enable_sleep,
        engines_sleep=args.vllm.enable_sleep,
    )
