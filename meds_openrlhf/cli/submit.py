"""`meds submit`: run a configuration as a job on a Ray cluster."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.config import ConfigError, load_config

if TYPE_CHECKING:
    from meds_openrlhf.jobs.cluster import JobServer
    from meds_openrlhf.jobs.submission import Submission


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "submit",
        help="train a policy as a job on a Ray cluster",
        description="Send the working folder to a Ray cluster, run `meds train CONFIG` there and follow it to its end "
        "(docs/cluster.md). Settings and --variant as with `meds train`. The exit code is that of `meds train`; "
        "143: the job was stopped; 69: the head does not answer any more.",
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="a run's YAML file, in the working folder")
    parser.add_argument("--address", help="the head's dashboard, http://head:8265 (RAY_API_SERVER_ADDRESS)")
    parser.add_argument("--working-dir", type=Path, default=Path("."), help="folder that goes along (%(default)s)")
    parser.add_argument(
        "--name", help="the job's name; a second attempt is NAME-2 (the run folder's name and the time)"
    )
    parser.add_argument("--retries", type=int, default=0, help="attempts to resume after a failure (%(default)s)")
    parser.add_argument("--retry-wait", type=float, default=30, help="seconds before such an attempt (%(default)s)")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME", help="send this variable too (repeatable)"
    )
    parser.add_argument("--no-follow", action="store_true", help="return as soon as the job is submitted")
    parser.add_argument("--resume", action="store_true", help="as for `meds train`")
    parser.add_argument("--verbose", action="store_true", help="as for `meds train`")
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Check the configuration, pack and submit the job, and follow it; returns the job's exit code."""
    load_config(arguments.config, overrides)  # report configuration errors first
    address = _require_sense(arguments)
    from meds_openrlhf.jobs.cluster import connect
    from meds_openrlhf.jobs.submission import prepare

    submission = prepare(
        arguments.config,
        overrides,
        working_dir=arguments.working_dir,
        name=arguments.name,
        resume=arguments.resume,
        verbose=arguments.verbose,
        variables=arguments.env,
        environ=os.environ,
    )
    server = connect(address)
    for line in submission.sent(address):
        _say(f"{submission.name}: {line}")
    if arguments.no_follow:
        name = submission.submit(server, 1)
        _say(f"{name}: submitted; {_commands(name, address)}")
        return 0
    return _follow(submission, server, address, arguments.retries, arguments.retry_wait)


def _require_sense(arguments: argparse.Namespace) -> str:
    """The dashboard's address. Raises ConfigError if it is missing or the options contradict each other."""
    address = arguments.address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if not address:
        raise ConfigError("--address", None, "is not set; name the head's dashboard, e.g. http://head:8265")
    if arguments.retries < 0:
        raise ConfigError("--retries", arguments.retries, "is below 0")
    if arguments.retries and arguments.no_follow:
        raise ConfigError("--retries", arguments.retries, "needs someone who follows; leave out --no-follow")
    return str(address)


def _follow(submission: Submission, server: JobServer, address: str, retries: int, retry_wait: float) -> int:
    from meds_openrlhf.jobs.attempts import attempts
    from meds_openrlhf.jobs.log_stream import Follower

    current, running = submission.name, False
    follower = Follower(server, _write, lambda line: _say(f"{current}: {line}"))

    def submit(attempt: int) -> str:
        nonlocal current, running
        current, running = submission.submit(server, attempt), True
        _say(f"{current}: submitted")
        return current

    def wait() -> None:
        nonlocal running
        running = False
        time.sleep(retry_wait)

    try:
        return attempts(submit, follower.follow, retries, lambda line: _say(f"meds: {line}"), wait).exit_code
    except KeyboardInterrupt:
        if running:
            _say(f"\n{current}: continues without this command; {_commands(current, address)}")
        else:
            _say(f"\n{current}: interrupted, and not submitted again; --resume continues it")
        return 130


def _commands(name: str, address: str) -> str:
    where = shlex.join(["--address", address, name])
    return f"read on with `ray job logs --follow {where}`, stop it with `ray job stop {where}`"


def _say(text: str) -> None:
    _write(f"{text}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
