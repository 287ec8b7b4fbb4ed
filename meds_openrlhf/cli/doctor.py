"""`meds doctor`: check a machine or a cluster before a run.

Train a tiny policy for two steps, on this machine or on every node of a cluster, to check that all parts start and
that engines receive its weights; on machines with two GPUs or more, train once more on shared GPUs, as the recipes
do, or as the one that --recipe names. Before that, check drivers, compilers, versions, the shared folder, W&B,
and the speed of an all-reduce within and between nodes. Prints a line for each check, with what to do about a fault.
Exit code 0: no check is WRONG (some may be slow); 1: a check is WRONG.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.quiet import quiet_start
from meds_openrlhf.options import add_command

if TYPE_CHECKING:
    from meds_openrlhf.doctor.checks import Finding


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "doctor", run, __doc__)
    add = parser.add_argument
    add("--address", help="address of a Ray cluster (default: RAY_ADDRESS; without it, this machine)")
    add("--folder", type=Path, default=Path("runs"), help="folder of runs, shared by all nodes (default: %(default)s)")
    recipe = (
        "a run's YAML file; try its parallelism, LoRA and correction, and check that its checkpoints fit on the disk"
    )
    add("--recipe", type=Path, metavar="CONFIG", help=recipe)
    add("--quick", action="store_true", help="skip the all-reduce and the training runs, which take minutes")
    add("--json", action="store_true", help="print each check as a line of JSON")
    add("--verbose", action="store_true", help="print the output of the workers")


def run(arguments: argparse.Namespace, _overrides: list[str]) -> int:
    """Print every finding as it comes; returns 1 if something is wrong."""
    quiet_start(arguments.verbose)
    if arguments.address is not None:
        os.environ["RAY_ADDRESS"] = arguments.address
    wrong = False
    for finding in _findings(arguments):
        print(json.dumps(finding.as_json()) if arguments.json else finding, flush=True)
        wrong = wrong or finding.word == "WRONG"
    return int(wrong)


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    from meds_openrlhf.config import load_config
    from meds_openrlhf.doctor import checks
    from meds_openrlhf.doctor.network import all_reduces
    from meds_openrlhf.doctor.trial import trials
    from meds_openrlhf.runtime.devices import has_cuda
    from meds_openrlhf.runtime.ray_connection import ray_connection

    folder, verbose = arguments.folder.absolute(), arguments.verbose
    recipe = None if arguments.recipe is None else load_config(arguments.recipe, named_by_user=True)
    yield checks.examine_wandb(os.environ)
    on_cpu = not os.environ.get("RAY_ADDRESS") and not has_cuda()
    say = partial(print, file=sys.stderr) if arguments.json else print
    with ray_connection(on_cpu=on_cpu, verbose=verbose, say=say):
        yield from checks.examine_nodes(folder)
        gpus, made_up = checks.gpus_of_nodes()
        if recipe is not None:
            yield checks.room_for_checkpoints(folder, recipe)
        if not gpus:
            advice = "wait for GPU nodes, or start Ray there"
            yield checks.Finding("cluster", "GPUs", "Ray has none on any node", advice)
        elif made_up:
            yield checks.Finding("cluster", "GPUs", "none: with meds.allow_cpu=true, policies of the demo's size train")
        if gpus and not arguments.quick:
            yield from all_reduces(gpus, 10**7 if made_up else 10**9)  # bytes
    if gpus and not arguments.quick:
        yield from trials(folder, gpus, made_up, verbose, recipe)
