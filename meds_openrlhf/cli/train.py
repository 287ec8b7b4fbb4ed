"""`meds train`, `meds plan` and `meds demo`: train a policy, show where its parts would be placed, and try it out."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.data import make_arithmetic
from meds_openrlhf.cli.quiet import quiet_start
from meds_openrlhf.config import ConfigError, RunConfig, load_config
from meds_openrlhf.options import add_command
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.terminal import RunConsole, aligned

if TYPE_CHECKING:
    from meds_openrlhf.placement.inventory import Node

STATED_GPU = "H200"  # of a cluster that is only stated


def add_train(subparsers: Any) -> None:
    """Register `meds train`."""
    parser = add_command(subparsers, "train", run_train, run_train.__doc__, takes_overrides=True)
    parser.add_argument("config", metavar="CONFIG", help="a run's YAML file, e.g. configs/cpu/meds.yaml")
    cluster = "nodes to size the run to and to wait for, e.g. 4x8 (default: those that Ray has now)"
    parser.add_argument("--cluster", metavar="NODESxGPUS", help=cluster)
    parser.add_argument("--resume", action="store_true", help="continue the run from its last checkpoint, if any")
    parser.add_argument("--verbose", action="store_true", help="print the output of every Ray worker")


def run_train(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """`meds train`: train a policy.

    Train a policy with the settings in CONFIG. Change any setting with --section.key VALUE: meds.* are the settings of
    this project (docs/configuration.md), all others are OpenRLHF's flags. --variant FILE:NAME, after CONFIG, applies a
    named set of changes, e.g. configs/ablations.yaml:14-diff.
    """
    config = load_config(arguments.config, overrides, named_by_user=True)
    train(config, resume=arguments.resume, verbose=arguments.verbose, cluster=arguments.cluster)
    return 0


def train(config: RunConfig, *, resume: bool, verbose: bool, cluster: str | None = None) -> None:
    """Train on ``cluster``, by default what Ray has now, with status lines on the console."""
    quiet_start(verbose)
    console = RunConsole(sys.stdout)
    console.say(f"{config.meds.run_dir}: checking the configuration")
    from meds_openrlhf.training.run import run_training

    run_training(config, resume=resume, verbose=verbose, console=console, cluster=cluster)
    console.done(config.meds.run_dir)


def add_plan(subparsers: Any) -> None:
    """Register `meds plan`."""
    parser = add_command(subparsers, "plan", run_plan, run_plan.__doc__, takes_overrides=True)
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a run's YAML file, e.g. configs/qwen2.5-math-7b/meds.yaml")
    add("--cluster", metavar="NODESxGPUS", help="a cluster to plan for, e.g. 4x8 (default: the running Ray cluster)")
    memory = f"memory of each GPU (default: the running cluster's, or an {STATED_GPU}'s with --cluster)"
    add("--gpu-memory", metavar="GB", type=float, help=memory)
    add("--cpus", metavar="N", type=int, help="CPUs of each node of --cluster (default: 16 per GPU)")
    add("--json", action="store_true", help="print JSON")


def run_plan(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """`meds plan`: show where each part of a run would be placed.

    Show which GPUs and CPUs a run would use and how much GPU memory it would need. Starts nothing. Takes the same
    settings and variants as `meds train`. Exit code 0: the run fits; 1: it does not fit, and the output says what is
    missing, or its memory is unknown, and the output says why; 2: the configuration is wrong.
    """
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
        problem = f"does not fit: the cluster {shortage.hint}"
        print(f"meds: {arguments.config} {problem}", file=sys.stderr)
        if arguments.json:
            print(json.dumps({"problems": [problem]}))
        return 1
    page = draw(report, " with ".join([arguments.config, *config.variants]))
    print(json.dumps(report.as_json(), indent=1) + "\n" if arguments.json else page, end="")
    return 1 if report.unknown or report.overfull else 0


def _nodes(arguments: argparse.Namespace) -> list[Node]:
    from meds_openrlhf.placement.inventory import GPU_MEMORY_GB, imagined_cluster

    if arguments.cluster is not None:
        memory = GPU_MEMORY_GB[STATED_GPU] if arguments.gpu_memory is None else arguments.gpu_memory
        return imagined_cluster(arguments.cluster, memory, arguments.cpus)
    if arguments.cpus is not None:
        raise ConfigError("--cpus", arguments.cpus, "applies only with --cluster. Add it, e.g. --cluster 4x8.")
    from meds_openrlhf.placement.ray_cluster import inventory
    from meds_openrlhf.runtime.ray_connection import joined

    hint = "Describe a cluster with --cluster, e.g. 4x8."
    with joined(hint, address=os.environ.get("RAY_ADDRESS") or "auto"):  # starts no cluster
        nodes = inventory()
    return nodes if arguments.gpu_memory is None else [replace(n, gpu_memory_gb=arguments.gpu_memory) for n in nodes]


def add_demo(subparsers: Any) -> None:
    """Register `meds demo`."""
    parser = add_command(subparsers, "demo", run_demo, run_demo.__doc__, takes_overrides=True)
    default = Path("configs/cpu/meds.yaml")
    parser.add_argument("--config", type=Path, default=default, help="a run's YAML file (default: %(default)s)")


def run_demo(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """`meds demo`: train a tiny policy on this machine; no GPU needed.

    Make arithmetic problems and a tiny policy, train it with memory-enhanced reward shaping, and write a report. Takes
    the same settings as `meds train`.
    """
    from meds_openrlhf.runtime import devices

    run_dir = f"runs/demo-{datetime.now():%Y%m%d-%H%M%S}"
    # On real GPUs the engine shares one with the policy, so that one is enough.
    placement = ["--meds.placement.mode", "auto"] if devices.has_cuda() else []
    config = load_config(arguments.config, ["--meds.run_dir", run_dir, *placement, *overrides])
    dataset = config.openrlhf.get("data.prompt_dataset")
    if dataset is None:
        raise ConfigError("data.prompt_dataset", None, f"not set in {arguments.config}. Name the file to make.")
    make_arithmetic(Path(dataset).parent)
    train(config, resume=False, verbose=False)
    from meds_openrlhf.report import write_report

    paths = RunPaths(Path(config.meds.run_dir))
    print(summarize(paths))
    print(write_report([paths.root], paths.report).resolve())
    return 0


def summarize(paths: RunPaths) -> str:
    """The report's table of first and last steps for the console, and the paths of the run's files."""
    from meds_openrlhf.runs.metrics import WINDOW, summary_of
    from meds_openrlhf.step_log import StepLog

    steps = StepLog(paths.metrics).read()
    if not steps:
        return f"{paths.root}: no step was finished"
    window = min(WINDOW, len(steps))
    rows: list[tuple[str, ...]] = [("", f"first {window}", f"last {window}")]
    for title, *means, _ in summary_of(steps):
        rows.append((title, *("--" if mean is None else f"{mean:.3f}" for mean in means)))
    files = {"curves": f"{_command('tensorboard')} --logdir {paths.tensorboard}", "metrics": str(paths.metrics)}
    files["policy"] = str(paths.model)
    if "meds/rows" in (last := steps[-1]):
        counts = f"{last['meds/rows']:.0f} rollouts of {last['meds/prompts']:.0f} prompts"
        files["memory"] = f"{counts}, {last['meds/clusters']:.0f} clusters, {last['meds/bytes'] / 1e6:.1f} MB"
        files["errors"] = f"{_command('meds')} memory inspect {paths.root}"
    return f"\n{len(steps)} steps in {paths.root}\n{aligned(rows, '<>>')}\n\n{aligned(list(files.items()))}"


def _command(name: str) -> str:
    """How the user starts a command of this installation: by its path, or by its name if it is on the PATH."""
    beside = Path(sys.executable).with_name(name)
    return name if shutil.which(name) == str(beside) else os.path.relpath(beside)
