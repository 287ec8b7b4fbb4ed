"""Places a run in the cluster: turns its flags into OpenRLHF's arguments with all counts, and plans the placement."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.placement.inventory import Node, Shortage, when_free
from meds_openrlhf.placement.model_shape import FoundShape, find_shape
from meds_openrlhf.placement.plan import SECTIONS, beside_memory, make_plan
from meds_openrlhf.placement.recipe import Recipe
from meds_openrlhf.placement.report import PlanReport, report
from meds_openrlhf.placement.sizing import mode_flags, require_batches, size
from meds_openrlhf.training.openrlhf.access import batching_of, parse_openrlhf_arguments, role_requests
from meds_openrlhf.training.start import checks

logger = logging.getLogger(__name__)

CONTROLLER_CPUS = 1
# Placeholders for counts that depend on the cluster, because OpenRLHF's parser checks all counts together.
PROVISIONAL = {
    **{f"{section}.{count}": 1 for section in SECTIONS.values() for count in ("num_nodes", "num_gpus_per_node")},
    "vllm.num_engines": 1,
    "vllm.tensor_parallel_size": 1,
}


@dataclass(frozen=True)
class Request:
    """What a run needs from a cluster: OpenRLHF's ``args`` from ``flags``, with placeholders for omitted counts."""

    config: RunConfig
    flags: Mapping[str, Any]
    args: SimpleNamespace
    models: Mapping[str, FoundShape]  # by role
    saved_ranks: Mapping[str, int]  # number of ranks by role, in the checkpoint to resume from


@dataclass(frozen=True)
class Placement:
    """The place of a run in a cluster: OpenRLHF's arguments with all counts, and the plan."""

    args: SimpleNamespace
    report: PlanReport


def request_of(config: RunConfig, flags: Mapping[str, Any], saved_ranks: Mapping[str, int] | None = None) -> Request:
    """Run all checks of flags and arguments, and return the request. Raises ConfigError."""
    mode = config.meds.placement.mode
    added = mode_flags(mode, flags)
    if mode != "flags":
        added |= {key: count for key, count in PROVISIONAL.items() if flags.get(key) is None}
    for check in checks.OF_FLAGS:
        check(config, {**flags, **added})
    args = parse_openrlhf_arguments({**flags, **added})
    for check_arguments in checks.OF_ARGUMENTS:
        check_arguments(config, args)
    models = models_of(args, config.meds.trust_remote_code)
    for check_models in checks.OF_MODELS:
        check_models(args, models)
    return Request(config, flags, args, models, saved_ranks or {})


def place(request: Request, nodes: Sequence[Node], sized_to: Sequence[Node] | None = None) -> Placement:
    """Choose missing counts for ``sized_to``, by default ``nodes``, and plan the placement on ``nodes``.

    Raises Shortage, a ConfigError, if the nodes do not have enough room.
    """
    meds, flags = request.config.meds, request.flags
    shards = meds.memory.shards if meds.enabled else 0
    free = beside_memory(nodes if sized_to is None else sized_to, shards)
    sizing = size(recipe_of(request, request.args), meds.placement.mode, free, CONTROLLER_CPUS, request.saved_ranks)
    args = request.args
    if sizing.flags:
        with redirect_stdout(io.StringIO()):  # the parser prints its remarks again
            args = parse_openrlhf_arguments({**flags, **sizing.flags})
    recipe, roles = recipe_of(request, args), role_requests(args)
    _require_saved_ranks(request, args)
    require_batches(recipe, roles, sizing.flags)
    checks.require_extras(request.config, args)  # again, for the ranks that were chosen
    return Placement(args, report(make_plan(roles, nodes, shards, CONTROLLER_CPUS), sizing, recipe))


def place_when_free(request: Request, resume: bool, inventory: Callable[[], Sequence[Node]]) -> Placement:
    """Place a run as soon as the nodes have room, within the timeout.

    A run without a checkpoint is sized as if the cluster were empty and waits for enough free resources; Shortage is
    raised immediately if even the empty cluster is too small. A resumed run may have lost a node that comes back, so it
    waits in any case, and with a checkpoint it is sized to the free resources. Raises Shortage after the timeout.
    """

    def placed(nodes: Sequence[Node]) -> Placement:
        try:
            return place(request, nodes, None if request.saved_ranks else [node.emptied() for node in nodes])
        except Shortage as shortage:
            raise _with_smaller_counts(request, nodes, shortage) from None

    seconds = request.config.meds.placement.timeout_seconds
    return when_free(placed, inventory, seconds, logger.warning, may_grow=resume)


def _with_smaller_counts(request: Request, nodes: Sequence[Node], shortage: Shortage) -> Shortage:
    """Return the shortage with advice on counts that fit the free resources; unchanged if no counts fit."""
    try:
        sized = place(request, nodes).report.sizing.flags
    except ConfigError:
        return shortage
    counts = " ".join(f"--{flag}={count}" for flag, count in sized.items() if flag in PROVISIONAL)
    return Shortage(shortage.text, f"To run on what is free, set the counts: {counts}")


def _require_saved_ranks(request: Request, args: SimpleNamespace) -> None:
    """Raise ConfigError if the number of ranks differs from the checkpoint's, because DeepSpeed could not load it."""
    for role in role_requests(args):
        saved = request.saved_ranks.get(role.role, role.gpus)
        if role.gpus != saved:
            hint = (
                f"makes {role.gpus} {role.role} ranks, but {saved} ranks saved the checkpoint to resume, and DeepSpeed "
                f"loads it only with the same number. Set {SECTIONS[role.role]}.num_nodes and num_gpus_per_node to "
                f"make {saved} ranks."
            )
            raise ConfigError(role.flag, role.block_gpus, hint)


def models_of(args: SimpleNamespace, trusted: bool) -> dict[str, FoundShape]:
    """Return the shape of each role's model. Reads configurations, no weights."""
    policy = args.actor.model_name_or_path
    others = {
        "critic": args.critic.model_name_or_path,
        "reward": (args.reward.model_name_or_path or policy).split(",")[0],
    }
    names = {request.role: others.get(request.role, policy) for request in role_requests(args)}
    found = {name: find_shape(name, trusted) for name in dict.fromkeys(names.values())}
    return {role: found[name] for role, name in names.items()}


def recipe_of(request: Request, args: SimpleNamespace) -> Recipe:
    """Return what placement needs to know about a run with these arguments of OpenRLHF."""
    meds = request.config.meds
    batching = batching_of(args)
    length: int = args.data.max_len

    def tokens_of(section: SimpleNamespace) -> int:
        """Return the tokens of a micro-batch; a longer sample is a micro-batch of its own."""
        if not batching.dynamic:
            return int(section.micro_batch_size * length)
        return max(int(section.max_tokens_per_gpu * batching.duplicates), length)

    return Recipe(
        models=request.models,
        batching=batching,
        given=request.flags,
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
