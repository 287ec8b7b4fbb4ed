"""`meds track`: send a run's metrics to TensorBoard and Weights & Biases, from its folder alone."""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import time
from pathlib import Path
from typing import Any

from meds_openrlhf.cli.extras import require_installed
from meds_openrlhf.config import ConfigError, load_config
from meds_openrlhf.paths import RunPaths

LOOK_SECONDS = 0.2
RUN_LOOK_SECONDS = 5.0
STOP_SECONDS = 10.0
# With --once: how long failures may last without progress, and how often a follower process is restarted.
GIVE_UP_SECONDS = 30.0
MOST_TRIES = 5


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "track",
        help="send a run's metrics to TensorBoard and W&B, now or later",
        description="Send what a run's folder holds and TensorBoard or Weights & Biases lack: after a time in which "
        "W&B did not answer, or from another machine. W&B is asked for by WANDB_API_KEY or WANDB_MODE=offline. Ends "
        "when the run has ended and everything is sent. The exit code is 0 then; 1 where W&B refuses it, or with "
        "--once does not answer; 2 where there is no run; 130 after Ctrl-C.",
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="a run's folder; the run may be going on")
    parser.add_argument("--once", action="store_true", help="send what is there and exit, even while the run continues")
    parser.set_defaults(run=run, takes_overrides=False)


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Follow the run to its end; returns 0 when everything is sent."""
    from meds_openrlhf.tracking.sending.destinations import TENSORBOARD, WANDB, destinations_of, wandb_wanted
    from meds_openrlhf.tracking.sending.follower_process import FollowerProcesses, tasks_for

    paths = RunPaths(arguments.folder.absolute())
    if not paths.config.exists():
        raise ConfigError("RUN", str(arguments.folder), "holds no run: there is no config.yaml in it")
    require_installed(TENSORBOARD)
    if wandb_wanted(os.environ):
        require_installed(WANDB)
    to = destinations_of(load_config(paths.config), paths)
    followers = FollowerProcesses(tasks_for(paths, to, os.environ), os.environ)
    try:
        return _follow(followers, paths, arguments.once)
    except KeyboardInterrupt:
        for line in followers.finish(STOP_SECONDS):
            print(line)
        return 130
    finally:
        followers.end()


def _follow(followers: Any, paths: RunPaths, once: bool) -> int:
    finishing, next_look, well = False, 0.0, time.monotonic()
    while not followers.are_done:
        if not finishing and time.monotonic() >= next_look:
            next_look = time.monotonic() + RUN_LOOK_SECONDS
            if once or not goes_on(paths):
                followers.order_finish(tries=MOST_TRIES if once else math.inf)
                finishing = True
        for line in followers.poll():
            print(line, flush=True)
        well = well if followers.get_nowhere else time.monotonic()
        if once and time.monotonic() > well + GIVE_UP_SECONDS:
            break
        time.sleep(LOOK_SECONDS)
    print("everything is sent" if followers.sent_everything else "not everything is sent")
    return 0 if followers.sent_everything else 1


def goes_on(paths: RunPaths) -> bool:
    """Whether a process is driving the run."""
    if not paths.lock.exists():
        return False
    with paths.lock.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
