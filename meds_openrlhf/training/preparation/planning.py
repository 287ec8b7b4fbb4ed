"""Plans a run without starting it: needs no Ray, data, weights or folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meds_openrlhf.config import RunConfig
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.inventory import Node
from meds_openrlhf.placement.report import PlanReport
from meds_openrlhf.training import cpu
from meds_openrlhf.training.preparation import checks
from meds_openrlhf.training.preparation.placing import place_flags, provisional_arguments
from meds_openrlhf.training.preparation.prepare import openrlhf_flags, require_flags
from meds_openrlhf.training.preparation.recipe import models_of


def plan_run(config: RunConfig, nodes: Sequence[Node]) -> PlanReport:
    """Plan the placement of a new run on ``nodes``.

    Raises the same errors as ``meds train``, except those about files other than the model.
    """
    on_cpu = config.meds.allow_cpu and not cpu.has_cuda()
    checks.require_local_model(config)
    checks.require_reward(config)
    flags = openrlhf_flags(config, RunPaths(Path(config.meds.run_dir)), on_cpu, load=False)
    args = provisional_arguments(config, flags)
    require_flags(config, args)
    return place_flags(config, flags, args, nodes, models_of(args)).report
