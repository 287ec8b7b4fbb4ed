"""Plans a run without starting it: needs no Ray, data, weights or folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meds_openrlhf.config import RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.report import PlanReport
from meds_openrlhf.training import cpu
from meds_openrlhf.training.preparation import adapters, checks
from meds_openrlhf.training.preparation.placing import place_flags, provisional_arguments
from meds_openrlhf.training.preparation.prepare import openrlhf_flags
from meds_openrlhf.training.preparation.recipe import models_of


def plan_run(config: RunConfig, nodes: Sequence[Node]) -> PlanReport:
    """Plan the placement of a new run on ``nodes``; raises the same errors as ``meds train``."""
    on_cpu = config.meds.allow_cpu and not cpu.has_cuda()
    checks.require_local_model(config)
    checks.require_reward(config)
    flags = openrlhf_flags(config, RunPaths(Path(config.meds.run_dir)), on_cpu, load=False)
    args = provisional_arguments(config, flags)
    adapters.require_settings(config, args)
    checks.require_filtering(config, args)
    checks.require_minibatches(config, args)
    return place_flags(config, flags, args, nodes, models_of(args)).report
