"""`meds track`: send a run's metrics to its trackers, from its folder alone."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.cli.extras import require_installed
from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.locks import try_lock
from meds_openrlhf.paths import RunPaths

if TYPE_CHECKING:
    from meds_openrlhf.tracking.sending.follower_process import FollowerProcess

LOOK_SECONDS = 0.2
RUN_LOOK_SECONDS = 5.0
STOP_SECONDS = 10.0
GIVE_UP_SECONDS = 30.0  # with --once, after the last progress


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "track",
        help="send a run's metrics to TensorBoard, W&B, SwanLab and MLflow, now or later",
        description="Send what a run's folder holds and a tracker lacks: after a time in which it did not answer, or "
        "from another machine. W&B is asked for by WANDB_API_KEY or WANDB_MODE=offline, SwanLab by SWANLAB_API_KEY or "
        "SWANLAB_MODE=offline, MLflow by MLFLOW_TRACKING_URI; TensorBoard's files are always written. Ends "
        "when the run has ended and everything is sent, however long that takes. The exit code is 0 then; 1 with "
        "--once where nothing works; 2 where there is no run; 130 after Ctrl-C.",
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="a run's folder; the run may be going on")
    parser.add_argument("--once", action="store_true", help="send what is there and exit, even while the run continues")
    parser.set_defaults(run=run, takes_overrides=False)


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Follow the run to its end; returns 0 when everything is sent."""
    from meds_openrlhf.tracking.sending.destinations import wanted_trackers
    from meds_openrlhf.tracking.sending.follower_process import FollowerProcess
    from meds_openrlhf.tracking.sending.sender import PACE

    paths = RunPaths(arguments.folder.absolute())
    if not paths.config.exists():
        raise ConfigError("RUN", str(arguments.folder), "holds no run: there is no config.yaml in it")
    load_config(paths.config)  # its errors are the user's
    for package in wanted_trackers(os.environ):
        require_installed(package)
    follower = FollowerProcess(paths, os.environ, PACE._replace(retry=10.0) if arguments.once else PACE)
    try:
        return _follow(follower, paths, arguments.once)
    except KeyboardInterrupt:
        for line in follower.finish(STOP_SECONDS, STOP_SECONDS):
            print(line)
        return 130
    finally:
        follower.end()


def _follow(follower: FollowerProcess, paths: RunPaths, once: bool) -> int:
    finishing, next_look = False, 0.0
    while not follower.is_done:
        if not finishing and time.monotonic() >= next_look:
            next_look = time.monotonic() + RUN_LOOK_SECONDS
            if once or not goes_on(paths):
                follower.order_finish()
                finishing = True
        for line in follower.poll():
            print(line, flush=True)
        if once and time.monotonic() > follower.stuck_since + GIVE_UP_SECONDS:
            break
        time.sleep(LOOK_SECONDS)
    for line in follower.poll():
        print(line, flush=True)
    print("everything is sent" if follower.has_sent_everything else "not everything is sent")
    return 0 if follower.has_sent_everything else 1


def goes_on(paths: RunPaths) -> bool:
    """Whether a process is driving the run."""
    if not paths.lock.exists():
        return False
    with paths.lock.open() as lock:
        return not try_lock(lock.fileno(), shared=True, optional=True)
