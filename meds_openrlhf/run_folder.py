"""The folder of a run that is being trained: one driver at a time, and files reset to the step at which it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meds_openrlhf.checkpoints import Checkpoint, point_latest_to, remove_partial
from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.files import write_atomically
from meds_openrlhf.locks import FolderInUseError, lock_folder
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.recorder import forget_after
from meds_openrlhf.runtime.ray_connection import require_lasting_in_job
from meds_openrlhf.step_log import StepLog


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
    fresh = not paths.root.exists()
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(paths.lock, wait_seconds if resume or wait_seconds is None else 0.0)
    except FolderInUseError as error:
        raise ConfigError("meds.run_dir", paths.root, str(error)) from error
    except OSError as error:
        raise ConfigError("meds.run_dir", paths.root, f"cannot be written to ({error.strerror}).") from error
    with lock:
        if paths.config.exists() and not resume:
            problem = (
                "holds a run already" if StepLog(paths.metrics).read() else "holds a run that has finished no step"
            )
            raise ConfigError(
                "meds.run_dir", paths.root, f"{problem}. Add --resume to continue it, or name another folder."
            )
        try:
            yield
        except ConfigError:
            if fresh and not paths.config.exists():
                paths.lock.unlink()
                paths.root.rmdir()
            raise


def set_back(paths: RunPaths, config: RunConfig, checkpoint: Checkpoint | None, planned_steps: int) -> int:
    """Write the run's configuration and plan to its folder, and set its other files back to where the run begins.

    Returns the last step that was trained before, 0 if none was.
    """
    remove_partial(paths)
    step = checkpoint.step if checkpoint else 0
    trained = max((line["step"] for line in StepLog(paths.metrics).read()), default=0)
    for log in (paths.metrics, paths.evaluations):
        StepLog(log).cut_after(step)
    forget_after(paths, step)
    if checkpoint is not None:
        point_latest_to(paths, checkpoint.tag)
    write_atomically(paths.planned_steps, f"{planned_steps}\n")
    write_atomically(paths.config, config.as_yaml())
    return trained
