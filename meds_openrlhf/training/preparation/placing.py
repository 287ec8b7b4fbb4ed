"""From a run's flags and a cluster's inventory to OpenRLHF's arguments with all counts, and the plan for them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.model_shape import FoundShape
from meds_openrlhf.placement.modes import require_consistent
from meds_openrlhf.placement.plan import make_plan
from meds_openrlhf.placement.report import PlanReport, report
from meds_openrlhf.placement.sizing import SECTIONS, Room, require_splittable_batches, size
from meds_openrlhf.training.preparation import checks
from meds_openrlhf.training.preparation.arguments import parse_openrlhf_arguments
from meds_openrlhf.training.preparation.recipe import recipe_of
from meds_openrlhf.training.roles import role_requests

CONTROLLER_CPUS = 1
# Stand in for counts that the file leaves to the cluster, until there is one: OpenRLHF's parser checks them together.
PROVISIONAL = {
    **{f"{section}.{count}": 1 for section in SECTIONS.values() for count in ("num_nodes", "num_gpus_per_node")},
    "vllm.num_engines": 1,
    "vllm.tensor_parallel_size": 1,
}


@dataclass(frozen=True)
class Placed:
    """A run's arguments with all counts, and where its roles go."""

    args: SimpleNamespace
    report: PlanReport


def provisional_arguments(config: RunConfig, flags: Mapping[str, Any]) -> SimpleNamespace:
    """OpenRLHF's arguments before the cluster is known; in mode `flags` they are the run's own.

    Raises ConfigError for flags that OpenRLHF refuses, or would stumble over, or that contradict the mode.
    """
    mode = config.meds.placement.mode
    checks.require_positive(flags)
    require_consistent(mode, flags)
    if mode == "flags":
        args = parse_openrlhf_arguments(flags)
    else:
        counts = {flag: count for flag, count in PROVISIONAL.items() if flags.get(flag) is None}
        with redirect_stdout(io.StringIO()):  # what the parser remarks it will again, about the counts that are sized
            args = parse_openrlhf_arguments({**flags, **counts})
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
    """Size what the flags leave out to ``sized_to``, or to ``nodes``, and plan where on ``nodes`` everything goes.

    ``provisional`` are the flags as ``provisional_arguments`` parses them. Raises ConfigError, as Shortage where the
    cluster is too small.
    """
    draft = recipe_of(provisional, models, flags)
    shards = config.meds.memory.shards if config.meds.enabled else 0
    room = Room.of(nodes if sized_to is None else sized_to, shards + CONTROLLER_CPUS)
    sizing = size(draft, config.meds.placement.mode, room, saved_ranks)
    args = parse_openrlhf_arguments({**flags, **sizing.flags}) if sizing.flags else provisional
    recipe = recipe_of(args, models, flags)
    require_saved_ranks(args, saved_ranks or {})
    require_splittable_batches(recipe, _ranks(args), sizing.flags)
    plan = make_plan(role_requests(args), nodes, shards, CONTROLLER_CPUS)
    return Placed(args, report(plan, sizing, recipe))


def _ranks(args: SimpleNamespace) -> dict[str, int]:
    """The number of ranks of each role that DeepSpeed runs."""
    return {request.role: request.gpus for request in role_requests(args) if request.role in SECTIONS}


def _require_counts_of_roles(args: SimpleNamespace) -> None:
    """Raise ConfigError where a role that the run has asks for no GPUs; those that it has not may say 0."""
    for request in role_requests(args):
        if request.role in SECTIONS:
            section = SECTIONS[request.role]
            checks.require_at_least_one(f"{section}.num_nodes", request.blocks)
            checks.require_at_least_one(f"{section}.num_gpus_per_node", request.block_gpus)


def require_saved_ranks(args: SimpleNamespace, saved_ranks: Mapping[str, int]) -> None:
    """Raise ConfigError where DeepSpeed could not load a checkpoint: each rank has saved its part of the optimizer."""
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
