"""Computes OpenRLHF's arguments with all counts, and the placement plan, from flags and the cluster's inventory."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.model_shape import FoundShape
from meds_openrlhf.placement.modes import mode_flags
from meds_openrlhf.placement.plan import beside_memory, make_plan
from meds_openrlhf.placement.report import PlanReport, report
from meds_openrlhf.placement.sizing import SECTIONS, Room, require_splittable_batches, size
from meds_openrlhf.training.preparation import checks
from meds_openrlhf.training.preparation.arguments import parse_openrlhf_arguments
from meds_openrlhf.training.preparation.recipe import recipe_of
from meds_openrlhf.training.roles import data_parallel_ranks, role_requests

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
    checks.require_positive(flags)
    added = mode_flags(mode, flags)
    if mode != "flags":
        added |= {key: count for key, count in PROVISIONAL.items() if flags.get(key) is None}
    checks.require_engines({**flags, **added})
    # The parser prints its remarks again for the final counts.
    with redirect_stdout(io.StringIO()) if added else nullcontext():
        args = parse_openrlhf_arguments({**flags, **added})
    _require_counts_of_roles(args)
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


def _require_counts_of_roles(args: SimpleNamespace) -> None:
    """Raise ConfigError if a role of the run requests no GPUs; counts of unused roles may be 0."""
    for request in role_requests(args):
        if request.role in SECTIONS:
            section = SECTIONS[request.role]
            checks.require_at_least_one(f"{section}.num_nodes", request.blocks)
            checks.require_at_least_one(f"{section}.num_gpus_per_node", request.block_gpus)


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
