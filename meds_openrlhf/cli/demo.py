"""`meds demo`: run the whole stack on this machine, from data to summary and report."""

from __future__ import annotations

import argparse
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
    from meds_openrlhf.training import cpu

    run_dir = f"runs/demo-{datetime.now():%Y%m%d-%H%M%S}"
    # On real GPUs the engine shares one with the policy, so that one is enough.
    placement = ["--meds.placement.mode", "auto"] if cpu.has_cuda() else []
    config = load_config(arguments.config, ["--meds.run_dir", run_dir, *placement, *overrides])
    dataset = config.openrlhf.get("data.prompt_dataset")
    if dataset is None:
        raise ConfigError("data.prompt_dataset", None, f"is not set in {arguments.config}; it names what to make")
    make_arithmetic(Path(dataset).parent)
    train(config, resume=False, verbose=False)
    from meds_openrlhf.report import write_report
    from meds_openrlhf.tracking.summary import summarize

    paths = RunPaths(Path(config.meds.run_dir))
    print(summarize(paths.root))
    print(write_report([paths.root], paths.report).resolve())
    return 0
