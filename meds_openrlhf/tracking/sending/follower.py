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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meds_openrlhf.config import load_config
from meds_openrlhf.locks import try_lock
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.processes import MARK, end_family
from meds_openrlhf.tracking.sending.destinations import (
    MLFLOW_SETTINGS,
    mlflow_wanted,
    swanlab_wanted,
    tensorboard_folder,
    wandb_wanted,
)
from meds_openrlhf.tracking.sending.run_lines import RunLines
from meds_openrlhf.tracking.sending.sender import Pace, Sender, Session, log
from meds_openrlhf.tracking.sending.tracking_state import change_state

LOOK_SECONDS = 0.1
DESERTED_SECONDS = 60.0
# Exit codes besides 0 (everything is sent): another process sends this run; the run was resumed, so begin again.
BUSY, REWOUND = 75, 76


def send(paths: RunPaths, pace: Pace, finishing: threading.Event, report: Callable[[list[str], bool], None]) -> int:
    """Send the run to its trackers until ``finishing`` is set, and then the rest; returns the exit code."""
    with paths.root.joinpath(".tracking.lock").open("w") as lock:
        if not try_lock(lock.fileno(), optional=True):
            report(["another process sends this run already; this one waits until it has ended"], True)
            return BUSY
        senders = _senders(paths, pace, finishing, lambda line: report([line], False))
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
            if any(sender.needs_another_process for sender in senders):
                break
        if all(sender.has_sent_everything for sender in senders):
            return 0
        return REWOUND if any(sender.needs_another_process and sender.was_rewound for sender in senders) else 1


def _senders(paths: RunPaths, pace: Pace, finishing: threading.Event, say: Callable[[str], None]) -> list[Sender]:
    config = load_config(paths.config)
    run_id = change_state(paths, lambda state: state).id

    def to_tensorboard() -> Session:
        from meds_openrlhf.tracking.sending.tensorboard_session import TensorBoardSession

        return TensorBoardSession(tensorboard_folder(config, paths), run_id, RunLines(paths, {}))

    def to_wandb() -> Session:
        from meds_openrlhf.tracking.sending.wandb_session import WandbSession

        return WandbSession(paths, config, os.environ, say)

    def to_swanlab() -> Session:
        with _extra("swanlab"):
            from meds_openrlhf.tracking.sending.swanlab_session import SwanlabSession

        return SwanlabSession(paths, config, os.environ, say)

    def to_mlflow() -> Session:
        os.environ.update({**MLFLOW_SETTINGS, **os.environ})
        with _extra("mlflow"):
            from meds_openrlhf.tracking.sending.mlflow_session import MlflowSession

        return MlflowSession(paths, config, os.environ, say)

    sessions = {
        "TensorBoard": to_tensorboard,
        **({"W&B": to_wandb} if wandb_wanted(os.environ) else {}),
        **({"SwanLab": to_swanlab} if swanlab_wanted(os.environ) else {}),
        **({"MLflow": to_mlflow} if mlflow_wanted(os.environ) else {}),
    }
    return [Sender(name, session, paths.root, finishing, pace) for name, session in sessions.items()]


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Name the extra that is missing, which the user reads, if a tracker's package is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed; pip install 'meds-openrlhf[{name}]'"
        raise ModuleNotFoundError(missing, name=error.name) from None


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
