"""Fits a run to a cluster: its flags become OpenRLHF's arguments with all counts, and these a plan of its placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.placement.inventory import Node, Shortage
from meds_openrlhf.placement.model_shape import FoundShape, find_shape
from meds_openrlhf.placement.plan import Plan, make_plan
from meds_openrlhf.placement.roles import COUNTS, TENSOR_PARALLEL, role_requests
from meds_openrlhf.placement.sizing import CONTROLLER_CPUS, mode_flags, require_batches, require_saved_ranks, size
from meds_openrlhf.training.openrlhf.access import parse_openrlhf_arguments
from meds_openrlhf.training.start import checks


def arguments_of(
    config: RunConfig,
    flags: Mapping[str, Any],
    nodes: Callable[[], Sequence[Node]],
    saved_ranks: Mapping[str, int],
    must_find: bool = False,
) -> tuple[SimpleNamespace, dict[str, FoundShape]]:
    """Return OpenRLHF's arguments, with omitted counts sized to ``nodes``, and the models by role; runs all checks.

    ``nodes`` is asked when the flags are known to be good one by one. ``saved_ranks`` are those of the checkpoint to
    resume, by role. With ``must_find``, models must be at hand to be checked for code. Raises ConfigError.
    """
    mode = config.meds.placement.mode
    given = {**flags, **mode_flags(mode, flags)}
    for check in checks.OF_FLAGS:
        check(config, given)
    decided: dict[str, int] = {}

    def counts(args: SimpleNamespace) -> dict[str, int]:
        if mode != "flags":
            decided.update(size(args, given, mode, nodes(), shards_of(config), saved_ranks))
        return decided

    args = parse_openrlhf_arguments(given, counts)
    for check_arguments in checks.OF_ARGUMENTS:
        check_arguments(config, args)
    models = models_of(args, config.meds.trust_remote_code)
    for check_models in checks.OF_MODELS:
        check_models(args, models)
    checks.require_trusted_models(config, args, must_find)
    require_saved_ranks(role_requests(args), saved_ranks)
    require_batches(args, given, decided)
    return args, models


def plan_of(config: RunConfig, args: SimpleNamespace, nodes: Sequence[Node], saved_ranks: Mapping[str, int]) -> Plan:
    """Plan the placement of a run on ``nodes``.

    Raises Shortage, a ConfigError, if they have no room, with counts for which they have, if there are any.
    """
    shards = shards_of(config)
    try:
        return make_plan(role_requests(args), nodes, shards, CONTROLLER_CPUS)
    except Shortage as shortage:
        given = {
            flag: value for flag, value in config.openrlhf.items() if flag == TENSOR_PARALLEL or flag not in COUNTS
        }
        smaller = size(args, given, config.meds.placement.mode, nodes, shards, saved_ranks)
        try:
            changed = _with_counts(args, smaller)
            require_batches(changed, given, smaller)
            make_plan(role_requests(changed), nodes, shards, CONTROLLER_CPUS)
        except ConfigError:  # nor do they fit
            raise shortage from None
        counts = " ".join(f"--{flag}={count}" for flag, count in smaller.items())
        advice = f"{shortage.advice} To run on what is there, set the counts: {counts}"
        raise Shortage(shortage.text, advice) from None


def shards_of(config: RunConfig) -> int:
    """Return the number of the memory's shards; 0 without a memory."""
    return config.meds.memory.shards if config.meds.enabled else 0


def _with_counts(args: SimpleNamespace, counts: Mapping[str, int]) -> SimpleNamespace:
    changed = deepcopy(args)
    for flag, count in counts.items():
        section, _, name = flag.partition(".")
        setattr(getattr(changed, section), name, count)
    return changed


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
