"""`meds demo`: run the whole stack on this machine, from data to summary and report."""

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
from meds_openrlhf.paths import RunPaths

CONFIG = Path("configs/cpu/meds.yaml")


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "demo",
        help="train a tiny policy on this machine, no GPU needed",
        description="Make the arithmetic task and its policy, train with memory-enhanced reward shaping, and report. "
        "Settings can be overridden as with `meds train`.",
    )
    parser.add_argument("--config", type=Path, default=CONFIG, help="(%(default)s)")
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Prepare the task, train and print a summary; the last line is the report's path."""
    from meds_openrlhf.runtime import devices

    run_dir = f"runs/demo-{datetime.now():%Y%m%d-%H%M%S}"
    # On real GPUs the engine shares one with the policy, so that one is enough.
    placement = ["--meds.placement.mode", "auto"] if devices.has_cuda() else []
    config = load_config(arguments.config, ["--meds.run_dir", run_dir, *placement, *overrides])
    dataset = config.openrlhf.get("data.prompt_dataset")
    if dataset is None:
        raise ConfigError("data.prompt_dataset", None, f"is not set in {arguments.config}; it names what to make")
    make_arithmetic(Path(dataset).parent)
    train(config, resume=False, verbose=False)
    from meds_openrlhf.report import write_report

    paths = RunPaths(Path(config.meds.run_dir))
    print(summarize(paths))
    print(write_report([paths.root], paths.report).resolve())
    return 0


def summarize(paths: RunPaths) -> str:
    """The report's table of first and last steps for the console, and the paths of the run's files."""
    from meds_openrlhf.report.history import WINDOW, read_lines, summary_of

    steps = read_lines(paths.metrics)
    if not steps:
        return f"{paths.root}: no step was finished"
    window = min(WINDOW, len(steps))
    lines = ["", f"{len(steps)} steps in {paths.root}", f"{'':27}{f'first {window}':>10}{f'last {window}':>10}"]
    for title, *means, _ in summary_of(steps):
        lines.append(title.ljust(27) + "".join(("--" if mean is None else f"{mean:.3f}").rjust(10) for mean in means))
    if has_memory := "meds/rows" in (last_step := steps[-1]):
        lines.append(
            f"memory: {last_step['meds/rows']:.0f} rollouts of {last_step['meds/prompts']:.0f} prompts in "
            f"{last_step['meds/clusters']:.0f} clusters, {last_step['meds/bytes'] / 1e6:.1f} MB"
        )
    lines += [
        "",
        f"curves   {_command('tensorboard')} --logdir {paths.tensorboard}",
        f"metrics  {paths.metrics}",
        f"policy   {paths.model}",
        *([f"errors   {_command('meds')} memory inspect {paths.root}"] if has_memory else []),
    ]
    return "\n".join(lines)


def _command(name: str) -> str:
    """How the user starts a command of this installation: by its path unless that is on the PATH."""
    beside = Path(sys.executable).with_name(name)
    return name if shutil.which(name) == str(beside) else os.path.relpath(beside)
