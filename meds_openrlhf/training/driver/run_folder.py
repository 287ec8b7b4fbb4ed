"""The run's folder, locked by one driver at a time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.config.file_settings import require_lasting_in_job
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog

RELEASE_SECONDS = 60.0


def run_paths_of(config: RunConfig) -> RunPaths:
    """Return the paths of the run's files. Raises ConfigError for a folder that a submitted job would lose."""
    folder = Path(config.meds.run_dir)
    require_lasting_in_job("meds.run_dir", folder)
    return RunPaths(folder.absolute())


@contextmanager
def sole_driver_of(paths: RunPaths, resume: bool) -> Iterator[None]:
    """Lock the run folder for this process.

    Raises ConfigError if the folder is in use, or if it contains a run and ``resume`` is false. With ``resume``, waits
    for the lock up to `RELEASE_SECONDS`, because a file server releases the lock of a lost node with a delay.
    """
    if paths.config.exists() and not resume:
        held = "holds a run already" if StepLog(paths.metrics).read() else "holds a run that has finished no step"
        hint = f"{held}; add --resume to continue it, or name another folder"
        raise ConfigError("meds.run_dir", str(paths.root), hint)
    fresh = not paths.root.exists()
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        lock = paths.lock.open("w")
    except OSError as error:
        raise ConfigError("meds.run_dir", str(paths.root), f"cannot be written to ({error.strerror})") from error
    with lock:
        if not _locked(lock, patience_seconds=RELEASE_SECONDS if resume else 0.0):
            raise ConfigError(
                "meds.run_dir", str(paths.root), "is in use by another process; wait for it, or name another folder"
            )
        try:
            yield
        except ConfigError:
            if fresh and not paths.config.exists():
                paths.lock.unlink()
                paths.root.rmdir()
            raise


def _locked(lock: TextIO, patience_seconds: float) -> bool:
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.5)
