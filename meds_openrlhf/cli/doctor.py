"""`meds doctor`: find what would break a run on this machine or cluster, before a run does."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.train import quiet_start

if TYPE_CHECKING:
    from meds_openrlhf.doctor.finding import Finding


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="check a machine or a cluster before a run",
        description="Train a tiny policy for two steps, on this machine or on every node of a cluster, to see that all "
        "parts start and that engines get its weights; with two GPUs or more also as recipes do, on shared GPUs. First "
        "check what such a training does not show: drivers, versions that differ between nodes, the folder that "
        "nodes share and its room, W&B, and the speed of an all-reduce within and between nodes. One line per check. "
        "Exit code 0: nothing is wrong; 1: something is, and its line says what to do.",
    )
    parser.add_argument("--address", help="of a Ray cluster (default: RAY_ADDRESS; without one: this machine)")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs"), help="where runs will be kept; on a cluster shared (%(default)s)"
    )
    parser.add_argument("--recipe", type=Path, metavar="CONFIG", help="is there room for the checkpoints of this run?")
    parser.add_argument("--quick", action="store_true", help="without network and trainings, which take minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--verbose", action="store_true", help="print what the training's workers print")
    parser.set_defaults(run=run, takes_overrides=False)


def run(arguments: argparse.Namespace, _overrides: list[str]) -> int:
    """Print every finding as it comes; returns 1 if something is wrong."""
    quiet_start(arguments.verbose)
    if arguments.address is not None:
        os.environ["RAY_ADDRESS"] = arguments.address
    wrong = False
    for finding in _findings(arguments):
        fields = {"result": finding.word, **asdict(finding)}
        print(json.dumps(fields) if arguments.json else finding, flush=True)
        wrong = wrong or finding.word == "WRONG"
    return int(wrong)


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    from meds_openrlhf.config import load_config
    from meds_openrlhf.doctor import cluster, disk, tracker
    from meds_openrlhf.doctor.finding import Finding
    from meds_openrlhf.runtime import devices
    from meds_openrlhf.runtime.ray_connection import joined

    folder = arguments.folder.absolute()
    recipe = None if arguments.recipe is None else load_config(arguments.recipe)
    yield tracker.examine_wandb(os.environ)
    if os.environ.get("RAY_ADDRESS"):
        hint = "; start one with `ray start --head`, or leave it out"
        with joined(hint, field="--address"):
            yield from cluster.examine_nodes(folder)
            nodes = cluster.gpu_nodes()
    else:
        yield from cluster.examine_this_machine(folder)
        import torch

        made_up = not devices.has_cuda()
        nodes = cluster.GpuNodes(1, devices.MADE_UP_GPUS if made_up else torch.cuda.device_count(), made_up)
    if recipe is not None:
        yield disk.room_for_checkpoints(folder, recipe)
    if not nodes.count:
        advice = "no run can be placed: see that GPU nodes have joined, with an image in which their driver works"
        yield Finding("cluster", "GPUs", "Ray has none on any node", advice)
    elif not arguments.quick:
        from meds_openrlhf.doctor.network import all_reduces
        from meds_openrlhf.doctor.trial import modes_of, train_tiny_policy
        from meds_openrlhf.runtime.ray_connection import ray_connection

        if nodes.gpus * nodes.count > 1:
            with ray_connection(on_cpu=nodes.made_up, verbose=arguments.verbose):
                yield from all_reduces(nodes.made_up)
        for mode in modes_of(nodes):
            yield train_tiny_policy(folder, nodes, mode, arguments.verbose)
