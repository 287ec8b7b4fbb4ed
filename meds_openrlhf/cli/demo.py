"""`meds demo`: train a tiny policy on this machine; no GPU needed.

Make arithmetic problems and a tiny policy, train it with memory-enhanced reward shaping, and write a report. Takes
the same settings as `meds train`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from meds_openrlhf.cli.data import make_arithmetic
from meds_openrlhf.cli.train import train
from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.options import add_command
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.terminal import aligned


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "demo", run, __doc__, takes_overrides=True)
    default = Path("configs/cpu/meds.yaml")
    parser.add_argument("--config", type=Path, default=default, help="a run's YAML file (default: %(default)s)")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Prepare the task, train and print a summary; the last line is the report's path."""
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
    from meds_openrlhf.tracking.step_log import StepLog

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
