"""`meds plan`: show which GPUs and CPUs a run would take, before anything starts."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.train import quiet_start
from meds_openrlhf.config import ConfigError, load_config

if TYPE_CHECKING:
    from meds_openrlhf.placement.inventory import Node

GPU_MEMORY_GB = 140.0  # what the driver reports of an H200


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "plan",
        help="show where each part of a run would be placed",
        description="Show which GPUs and CPUs a run would take and how full they get, and start nothing. Exit code 0: "
        "it fits; 1: it does not, and the line says what lacks; 2: the configuration is wrong. Settings can be "
        "overridden, and variants named, as for `meds train`.",
    )
    parser.add_argument("config", metavar="CONFIG", help="a run's YAML file, e.g. configs/qwen2.5-math-7b/meds.yaml")
    parser.add_argument(
        "--cluster",
        metavar="NODESxGPUS",
        help="plan for an imagined cluster, e.g. 4x8; without: for Ray's, as it is now",
    )
    parser.add_argument("--gpu-memory", metavar="GB", type=float, help="of one GPU (default with --cluster: 140)")
    parser.add_argument("--cpus", metavar="N", type=int, help="of one node of --cluster (default: 16 per GPU)")
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Print the plan; returns 0 if it fits."""
    config = load_config(arguments.config, overrides)
    quiet_start(verbose=False)
    from meds_openrlhf.placement.report import draw
    from meds_openrlhf.placement.shortage import Shortage
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
        raise ConfigError("--cpus", arguments.cpus, "is about an imagined cluster; name one with --cluster, e.g. 4x8")
    from meds_openrlhf.placement.ray_cluster import inventory
    from meds_openrlhf.runtime.ray_connection import joined

    hint = ", nor does one run here; name an imagined one with --cluster, e.g. 4x8"
    with joined(hint, address=os.environ.get("RAY_ADDRESS") or "auto"):  # starts no cluster
        nodes = inventory()
    return nodes if arguments.gpu_memory is None else [replace(n, gpu_memory_gb=arguments.gpu_memory) for n in nodes]
