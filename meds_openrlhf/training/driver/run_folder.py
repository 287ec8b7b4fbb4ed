"""The run's folder, locked by one driver at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.config.file_settings import require_lasting_in_job
from meds_openrlhf.locks import NoLocksError, wait_for_lock
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.step_log import StepLog

logger = logging.getLogger(__name__)


def run_paths_of(config: RunConfig) -> RunPaths:
    """Return the paths of the run's files. Raises ConfigError for a folder that a submitted job would lose."""
    folder = Path(config.meds.run_dir)
    require_lasting_in_job("meds.run_dir", folder)
    return RunPaths(folder.absolute())


@contextmanager
def sole_driver_of(paths: RunPaths, resume: bool, wait_seconds: float | None) -> Iterator[None]:
    """Lock the run folder for this process; with ``wait_seconds`` (meds.lock_seconds) None, do not.

    Raises ConfigError if the folder is in use, or if it contains a run and ``resume`` is false. With ``resume``, waits
    for the lock up to ``wait_seconds``, because a file server releases that of a lost node late.
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
        if wait_seconds is not None:
            _lock(lock.fileno(), paths, wait_seconds if resume else 0.0)
        try:
            yield
        except ConfigError:
            if fresh and not paths.config.exists():
                paths.lock.unlink()
                paths.root.rmdir()
            raise


def _lock(file: int, paths: RunPaths, seconds: float) -> None:
    def warn() -> None:
        logger.warning(
            "%s: another process has locked the folder; waiting up to %g s (meds.lock_seconds): a file server releases "
            "the lock of a lost node late",
            *(paths.root, seconds),
        )

    try:
        if wait_for_lock(file, seconds, warn):
            return
    except NoLocksError as error:
        hint = f"{error.strerror}; mount it with them, or set meds.lock_seconds: null and start one run there at a time"
        raise ConfigError("meds.run_dir", str(paths.root), hint) from error
    hint = "is in use by another process; wait for it, or name another folder"
    raise ConfigError("meds.run_dir", str(paths.root), hint)
