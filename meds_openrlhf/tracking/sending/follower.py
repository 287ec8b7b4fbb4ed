"""The process that sends a run's metrics to its trackers: ``python -m`` this module, with the run's folder.

A thread per tracker follows the run's files. The main thread reports to the parent, in JSON lines on stdout: [lines for
the user, whether no tracker takes anything now]. A line on stdin is the order to send the rest and end; if stdin
closes, the parent is gone, and there is a time limit for that. Libraries' output goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from meds_openrlhf.config import RunConfig, load_config
from meds_openrlhf.locks import try_lock
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.processes import MARK, end_family
from meds_openrlhf.tracking.sending.destinations import MLFLOW_SETTINGS, TRACKERS, wanted_trackers
from meds_openrlhf.tracking.sending.sender import BUSY, Pace, Sender, Session, log

LOOK_SECONDS = 0.1
DESERTED_SECONDS = 60.0


def send(paths: RunPaths, pace: Pace, finishing: threading.Event, report: Callable[[list[str], bool], None]) -> int:
    """Send the run to its trackers until ``finishing`` is set, and then the rest; returns the exit code."""
    with paths.root.joinpath(".tracking.lock").open("w") as lock:
        if not try_lock(lock.fileno(), optional=True):
            report(["another process sends this run already; this one waits until it has ended"], True)
            return BUSY
        os.environ.update({**MLFLOW_SETTINGS, **os.environ})
        open_session = partial(_session, paths, load_config(paths.config), lambda line: report([line], False))
        senders = [
            Sender(TRACKERS[package][0], partial(open_session, package), paths.root, finishing, pace)
            for package in wanted_trackers(os.environ)
        ]
        for sender in senders:
            sender.start()
        was_stuck = False
        while left := [sender for sender in senders if sender.is_alive()]:
            left[0].join(LOOK_SECONDS)
            news = [line for sender in senders if (line := sender.news()) is not None]
            is_stuck = all(sender.is_in_trouble for sender in left)
            if news or is_stuck != was_stuck:
                report(news, is_stuck)
            was_stuck = is_stuck
            if any(sender.exit_code for sender in senders):
                break
        return max(1 if sender.exit_code is None else sender.exit_code for sender in senders)


def _session(paths: RunPaths, config: RunConfig, say: Callable[[str], None], package: str) -> Session:
    """Open a session. Its module is imported here, because that takes seconds and may fail."""
    try:
        kind = resolve_name(f"meds_openrlhf.tracking.sending.{package}_session:{TRACKERS[package][1]}")
    except ModuleNotFoundError as error:
        extra = package if package in ("swanlab", "mlflow") else "track"
        missing = f"{error.name} is not installed; pip install 'meds-openrlhf[{extra}]'"
        raise ModuleNotFoundError(missing, name=error.name) from None
    session: Session = kind(paths, config, os.environ, say)
    return session


def _await_order(finishing: threading.Event) -> None:
    # os.read instead of a stream: this thread would hold the stream's lock at interpreter exit.
    if os.read(sys.stdin.fileno(), 1):
        finishing.set()
        while os.read(sys.stdin.fileno(), 1000):
            pass
    finishing.set()
    time.sleep(DESERTED_SECONDS)
    _end(1)


def _end(code: int) -> None:
    """End without waiting for W&B's client and its uploads, and kill W&B's own process."""
    end_family(os.environ.get(MARK), but=os.getpid())
    os._exit(code)


def main() -> None:
    """Run the process."""
    paths, pace = RunPaths(Path(sys.argv[1])), Pace(*map(float, sys.argv[2:]))
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keep output of libraries out of the reports
    finishing = threading.Event()
    threading.Thread(target=_await_order, args=(finishing,), daemon=True).start()

    def report(lines: list[str], is_stuck: bool) -> None:
        with suppress(BrokenPipeError):  # the parent is gone, but the rest is still sent
            reports.write(json.dumps([lines, is_stuck]) + "\n")
            reports.flush()

    try:
        _end(send(paths, pace, finishing, report))
    except Exception:  # of any kind: the log is the only place for it
        log(traceback.format_exc())
        _end(1)


if __name__ == "__main__":
    main()
