"""`meds train`: train a policy.

Train a policy with the settings in CONFIG. Change any setting with --section.key VALUE: meds.* are the settings of
this project (docs/configuration.md), all others are OpenRLHF's flags. --variant FILE:NAME, after CONFIG, applies a
named set of changes, e.g. configs/ablations.yaml:14-diff.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from meds_openrlhf.config import RunConfig, load_config
from meds_openrlhf.options import add_command


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "train", run, __doc__, takes_overrides=True)
    parser.add_argument("config", metavar="CONFIG", help="a run's YAML file, e.g. configs/cpu/meds.yaml")
    parser.add_argument("--resume", action="store_true", help="continue the run from its last checkpoint, if any")
    parser.add_argument("--verbose", action="store_true", help="print the output of every Ray worker")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Train; returns 0 when the run has finished."""
    config = load_config(arguments.config, overrides, named_by_user=True)
    train(config, resume=arguments.resume, verbose=arguments.verbose)
    return 0


def train(config: RunConfig, *, resume: bool, verbose: bool) -> None:
    """Train with status lines on the console."""
    quiet_start(verbose)
    from meds_openrlhf.terminal import RunConsole

    console = RunConsole(sys.stdout)
    console.say(f"{config.meds.run_dir}: checking the configuration")
    from meds_openrlhf.training.run import run_training

    run_training(config, resume=resume, verbose=verbose, console=console)
    console.done(config.meds.run_dir)


def quiet_start(verbose: bool) -> None:
    """Silence what the libraries print while they load, which does not concern the user's run."""
    if verbose:
        return
    import logging
    import os
    import warnings

    warnings.filterwarnings("ignore")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)  # it resets a level
