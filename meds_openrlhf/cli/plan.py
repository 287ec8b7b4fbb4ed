"""`meds plan`: show where each part of a run would be placed.

Show which GPUs and CPUs a run would use and how much GPU memory it would need. Starts nothing. Takes the same
settings and variants as `meds train`. Exit code 0: the run fits; 1: it does not fit, and the output says what is
missing; 2: the configuration is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.train import quiet_start
from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.options import add_command

if TYPE_CHECKING:
    from meds_openrlhf.placement.inventory import Node

GPU_MEMORY_GB = 140.0  # what the driver reports of an H200


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "plan", run, __doc__, takes_overrides=True)
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a run's YAML file, e.g. configs/qwen2.5-math-7b/meds.yaml")
    add("--cluster", metavar="NODESxGPUS", help="a cluster to plan for, e.g. 4x8 (default: the running Ray cluster)")
    memory = f"memory of each GPU (default: the running cluster's, or {GPU_MEMORY_GB:g} with --cluster)"
    add("--gpu-memory", metavar="GB", type=float, help=memory)
    add("--cpus", metavar="N", type=int, help="CPUs of each node of --cluster (default: 16 per GPU)")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Print the plan; returns 0 if it fits."""
    config = load_config(arguments.config, overrides, named_by_user=True)
    quiet_start(verbose=False)
    from meds_openrlhf.placement.inventory import Shortage
    from meds_openrlhf.placement.report import draw
    from meds_openrlhf.training.start.prepare import plan_run

    nodes = _nodes(arguments)
    try:
        with redirect_stdout(sys.stderr):  # output of OpenRLHF's parser is not part of the plan
            report = plan_run(config, nodes)
    except Shortage as shortage:
        print(f"meds: {arguments.config} does not fit: the cluster {shortage.hint}", file=sys.stderr)
        return 1
    print(draw(report, " with ".join([arguments.config, *config.variants])), end="")
    return 1 if report.overfull else 0


def _nodes(arguments: argparse.Namespace) -> list[Node]:
    from meds_openrlhf.placement.inventory import imagined_cluster

    if arguments.cluster is not None:
        memory = GPU_MEMORY_GB if arguments.gpu_memory is None else arguments.gpu_memory
        return imagined_cluster(arguments.cluster, memory, arguments.cpus)
    if arguments.cpus is not None:
        raise ConfigError("--cpus", arguments.cpus, "applies only with --cluster. Add it, e.g. --cluster 4x8.")
    from meds_openrlhf.placement.ray_cluster import inventory
    from meds_openrlhf.runtime.ray_connection import joined

    hint = "Describe a cluster with --cluster, e.g. 4x8."
    with joined(hint, address=os.environ.get("RAY_ADDRESS") or "auto"):  # starts no cluster
        nodes = inventory()
    return nodes if arguments.gpu_memory is None else [replace(n, gpu_memory_gb=arguments.gpu_memory) for n in nodes]
