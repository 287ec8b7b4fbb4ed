"""Runs training: locks the folder, checks, reserves resources, starts, follows, saves."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from meds_openrlhf.checkpoints import newest_complete
from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.features.answer import AnswerOpenings
from meds_openrlhf.features.function import FeatureFunctionError
from meds_openrlhf.files import write_atomically
from meds_openrlhf.locks import FolderInUseError, lock_folder
from meds_openrlhf.memory.branch import make_branch, rewrite_memory
from meds_openrlhf.memory.pool import MemoryPool, start_shards
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, write_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.groups import release, reserve, shard_options
from meds_openrlhf.placement.ray_cluster import inventory
from meds_openrlhf.runtime.errors import RunLostError, innermost
from meds_openrlhf.runtime.ray_connection import ray_connection, require_lasting_in_job
from meds_openrlhf.runtime.signals import (
    Interrupted,
    Interruptions,
    WatchdogExpired,
    interruptible,
)
from meds_openrlhf.tracking.response_texts import ResponseReader
from meds_openrlhf.tracking.rollout_recorder import RolloutRecorder, forget_after
from meds_openrlhf.tracking.sending import Trackers
from meds_openrlhf.tracking.step_log import StepLog
from meds_openrlhf.tracking.trackers import wanted_trackers
from meds_openrlhf.training.start import checks
from meds_openrlhf.training.start.actors import start_models
from meds_openrlhf.training.start.prepare import Job, PlacedJob, place_when_free, prepare, with_absolute_function
from meds_openrlhf.training.watch.control import Stopped, start_run_control, this_node
from meds_openrlhf.training.watch.follow import (
    Following,
    Member,
    RunListener,
    actors_of_this_job,
    loss_behind,
    members_of,
)


def run_training(
    config: RunConfig,
    *,
    resume: bool,
    verbose: bool = False,
    listener: RunListener,
) -> None:
    """Train to the end.

    Raises ConfigError, with nothing started, for mistakes that the user can correct; RunLostError if a vital process is
    lost, the user's feature fails or the run makes no progress for too long; Interrupted on Ctrl-C or SIGTERM.
    """
    paths = run_paths_of(config)
    checks.require_local_paths(config)
    with sole_driver_of(paths, resume, config.meds.lock_seconds):
        job = prepare(config, paths, resume)
        connection = ray_connection(on_cpu=job.on_cpu, verbose=verbose)
        with connection, interruptible(config.meds.watchdog.minutes) as interruptions:
            began = time.monotonic()
            placed = place_when_free(job, inventory)
            groups = reserve(placed.plan, config.meds.placement.timeout_seconds, since=began)
            try:
                _open_run_folder(placed)
                listener.start(placed)
                if job.left_out:
                    listener.say(job.left_out)
                trackers = Trackers(paths, wanted_trackers(os.environ), first_step=job.first_step)
                try:
                    _train(placed, groups, interruptions, listener, trackers)
                finally:
                    for line in trackers.finish():
                        listener.say(line)
            except RunLostError as error:
                raise RunLostError(f"{error}; {_way_on(paths)}") from error
            finally:
                release(groups)


def _train(
    job: PlacedJob,
    groups: dict[str, Any],
    interruptions: Interruptions,
    listener: RunListener,
    trackers: Trackers,
) -> None:
    """Start everything and follow it to the end; raises RunLostError if a process or the user's feature fails."""
    members: list[Member] = []
    try:
        with interruptions.themselves():
            interruptions.rewind_watchdog()
            _start_and_follow(job, groups, members, interruptions, listener, trackers)
    except WatchdogExpired:
        raise RunLostError(
            f"nothing was finished within {job.config.meds.watchdog.minutes:g} minutes (meds.watchdog.minutes); if it "
            "happens again, `ray stack` or `py-spy dump --pid PID` on a node shows what its processes wait for"
        ) from None
    except ray.exceptions.RayError as error:
        lost = innermost(error)
        if isinstance(lost, RunLostError):
            raise lost from error
        if isinstance(lost, FeatureFunctionError):
            raise RunLostError(str(lost)) from error
        loss = loss_behind(error, members or actors_of_this_job())
        if loss is None:
            raise
        raise RunLostError(loss) from error


def _way_on(paths: RunPaths) -> str:
    newest = newest_complete(paths)
    if newest is None:
        return "no checkpoint was saved yet, so --resume starts from the beginning"
    return f"the same command with --resume resumes after step {newest.step}"


def _open_run_folder(job: Job) -> None:
    """Write the run's configuration to its folder, and cut logs back to the first step."""
    for log in (job.paths.metrics, job.paths.evaluations):
        StepLog(log).cut_after(job.first_step)
    forget_after(job.paths, job.first_step)
    write_atomically(job.paths.config, job.config.as_yaml())


def _memory_format(job: Job) -> MemoryFormat:
    """Write and return the format of the run's memory; a new memory that branches from another gets its rows here."""
    branch_from, paths, memory = job.config.meds.memory.branch_from, job.paths.memory, job.memory
    rewrite_memory(paths, memory, job.config.meds.lock_seconds)
    if branch_from is not None and not paths.format.exists():
        memory = make_branch(Path(branch_from), paths, memory)
    write_format(paths, memory)
    return memory


def _start_shards(job: Job, memory_format: MemoryFormat, groups: dict[str, Any]) -> list[Any]:
    memory = job.config.meds.memory
    settings = ShardSettings(
        layers=job.memory.layers,
        transform=job.transform,
        method=memory.method,
        lock_seconds=job.config.meds.lock_seconds,
    )
    return start_shards(job.paths.memory, memory_format, settings, shard_options(groups["memory"], memory.shards))


def _start_memory(job: Job, groups: dict[str, Any]) -> tuple[list[Any], MemoryPool | None]:
    """Start the memory; return the shards' handles and the pool, or an empty list and None without a memory."""
    if not job.config.meds.enabled:
        return [], None
    memory_format = _memory_format(job)
    shards = _start_shards(job, memory_format, groups)
    config_hash = hashlib.sha256(job.config.as_yaml().encode()).hexdigest()
    return shards, MemoryPool(shards, job.paths.memory.root, memory_format, config_hash)


def _start_and_follow(
    job: PlacedJob,
    groups: dict[str, Any],
    members: list[Member],
    interruptions: Interruptions,
    listener: RunListener,
    trackers: Trackers,
) -> None:
    """Start all actors, add them to ``members``, follow the training and save the models."""
    from meds_openrlhf.training.watch.control import TrainerContext

    control = start_run_control(job.paths)
    shards, pool = _start_memory(job, groups)
    context = TrainerContext(
        meds=with_absolute_function(job.config.meds),
        paths=job.paths,
        control=control,
        pool=pool,
        transform=job.transform,
        records_layers=job.records_layers,
        recorder=_start_recorder(job),
        first_step=job.first_step,
    )
    models = start_models(job.args, groups, context, job.placement.engine_limits)
    members += members_of(models.trainer, models.engines, models.groups, shards)
    following = Following(control, members, listener, interruptions, trackers)
    stopped = following.to_the_end(models.trainer.fit.remote())
    if stopped is not None:
        raise Interrupted(interruptions.noted or 0, _how_it_stopped(stopped))
    ray.get(models.groups["policy"].async_save_model())
    if "critic" in models.groups and job.args.critic.save_value_network:
        ray.get(models.groups["critic"].async_save_model())


def _how_it_stopped(stopped: Stopped) -> str:
    saved = f"checkpoint {stopped.tag} is saved, resume with --resume" if stopped.tag else "ckpt.disable_ds: not saved"
    return f"stopped after step {stopped.step}; {saved}"


def _start_recorder(job: Job) -> Any:
    """Start the rollout recorder on this node, whose disk has the run folder; None if it is not needed."""
    features, keep = job.config.meds.features, job.config.meds.tracking.rollouts
    if keep == "none" and not job.config.meds.enabled:
        return None
    answers = AnswerOpenings(features.answer_openings, features.answer_pattern)
    reader = ResponseReader.of(job.args.actor.model_name_or_path, answers, job.paths.tokenizer)
    actor = ray.remote(num_cpus=0, max_restarts=-1)(RolloutRecorder).options(scheduling_strategy=this_node())
    return actor.remote(job.paths, reader, keep)


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
        problem = "holds a run already" if StepLog(paths.metrics).read() else "holds a run that has finished no step"
        hint = f"{problem}; add --resume to continue it, or name another folder"
        raise ConfigError("meds.run_dir", str(paths.root), hint)
    fresh = not paths.root.exists()
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(paths.lock, wait_seconds if resume or wait_seconds is None else 0.0)
    except FolderInUseError as error:
        raise ConfigError("meds.run_dir", str(paths.root), str(error)) from error
    except OSError as error:
        raise ConfigError("meds.run_dir", str(paths.root), f"cannot be written to ({error.strerror})") from error
    with lock:
        try:
            yield
        except ConfigError:
            if fresh and not paths.config.exists():
                paths.lock.unlink()
                paths.root.rmdir()
            raise
