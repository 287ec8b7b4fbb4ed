"""`meds track`: send a run's metrics to TensorBoard, W&B, SwanLab and MLflow.

Send the part of a run's metrics that its trackers do not have yet, from any machine, e.g. after a tracker failed.
Always writes TensorBoard's files, into RUN/tensorboard. Set WANDB_API_KEY or WANDB_MODE=offline for W&B,
SWANLAB_API_KEY or SWANLAB_MODE=offline for SwanLab, and MLFLOW_TRACKING_URI for MLflow. Ends when the run has ended and
everything is sent. Exit code 0: everything is sent; 1: with --once, something could not be sent; 2: the folder contains
no run; 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.files import open_file
from meds_openrlhf.locks import try_lock
from meds_openrlhf.options import add_command
from meds_openrlhf.paths import RunPaths

if TYPE_CHECKING:
    from meds_openrlhf.tracking.sending import Trackers

LOOK_SECONDS, RUN_LOOK_SECONDS = 0.2, 5.0
STOP_SECONDS = 10.0  # for the rest, at the end and after Ctrl-C


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "track", run, __doc__)
    parser.add_argument("folder", metavar="RUN", type=Path, help="folder of a run, which may still be training")
    parser.add_argument("--once", action="store_true", help="send what is there and exit, even if the run is training")


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Send the run to its end; returns 0 when everything is sent."""
    from meds_openrlhf.tracking.sending import Trackers
    from meds_openrlhf.tracking.trackers import wanted_trackers

    paths = RunPaths(arguments.folder.absolute())
    if not paths.config.exists():
        raise ConfigError("RUN", arguments.folder, "contains no run, since it has no config.yaml.")
    packages = wanted_trackers(os.environ)
    for package in packages:
        if importlib.util.find_spec(package) is None:  # before anything is started
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    trackers = Trackers(paths, packages, of_others=True)
    try:
        _follow(trackers, paths, arguments.once)
    finally:
        for line in trackers.finish(STOP_SECONDS):
            print(line)
    if not trackers.left:
        print("everything is sent")
    return 1 if trackers.left else 0


def _follow(trackers: Trackers, paths: RunPaths, once: bool) -> None:
    """Print messages until everything is sent or, with ``once``, until no tracker answers."""
    next_look = 0.0
    while trackers.left and not (once and trackers.are_stuck):
        if not trackers.finishing.is_set() and time.monotonic() >= next_look:
            next_look = time.monotonic() + RUN_LOOK_SECONDS
            if once or not goes_on(paths):
                trackers.finishing.set()
        for line in trackers.poll():
            print(line, flush=True)
        time.sleep(LOOK_SECONDS)


def goes_on(paths: RunPaths) -> bool:
    """Whether a process is driving the run."""
    if not paths.lock.exists():
        return False
    if load_config(paths.config).meds.lock_seconds is None:  # nothing is locked
        return not paths.model_complete.exists()
    with open_file(paths.lock) as lock:
        return not try_lock(lock.fileno(), shared=True, optional=True)
