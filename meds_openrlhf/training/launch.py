"""A run as its driver sees it: hold the folder, check, reserve, start, follow, save."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.memory.archive import archive_snapshot
from meds_openrlhf.memory.branch import BRANCH_SNAPSHOT, make_branch
from meds_openrlhf.memory.pool import MemoryPool, start_shards
from meds_openrlhf.memory.settings import method_of
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, write_format
from meds_openrlhf.paths import RunPaths, write_atomically
from meds_openrlhf.placement.groups import inventory, release, reserve, shard_options
from meds_openrlhf.placement.plan import require_fit
from meds_openrlhf.tracking.step_log import StepLog
from meds_openrlhf.training import checks, cpu
from meds_openrlhf.training.prepare import Job, prepare
from meds_openrlhf.training.roles import start_models


def run_training(
    config: RunConfig,
    *,
    resume: bool,
    verbose: bool = False,
    on_start: Callable[[Job], None],
    on_step: Callable[[int, dict[str, float]], None],
) -> None:
    """Train to the end. Raises ConfigError, with nothing started, for whatever the user can mend."""
    paths = _run_paths(config)
    checks.require_local_paths(config)
    with _sole_driver_of(paths, resume):
        job = prepare(config, paths, resume)
        with _ray(job, verbose):
            require_fit(job.plan, inventory())
            groups = reserve(job.plan, config.meds.placement.timeout_seconds)
            try:
                _open_run_folder(job)
                on_start(job)
                _train(job, groups, on_step)
            finally:
                release(groups)


def _run_paths(config: RunConfig) -> RunPaths:
    folder = Path(config.meds.run_dir)
    if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") and not folder.is_absolute():
        raise ConfigError(
            "meds.run_dir",
            str(folder),
            "is relative, and a submitted job runs in a copy of its folder that Ray throws away; name it from the "
            "root, on storage that every node sees",
        )
    return RunPaths(folder.absolute())


@contextmanager
def _sole_driver_of(paths: RunPaths, resume: bool) -> Iterator[None]:
    """Hold the run folder for this process. Refuses one that is in use, or that holds a run and is not resumed."""
    if paths.config.exists() and not resume:
        raise ConfigError(
            "meds.run_dir",
            str(paths.root),
            "holds a run already; add --resume to go on with it, or name another folder",
        )
    fresh = not paths.root.exists()
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        lock = paths.lock.open("w")
    except OSError as error:
        raise ConfigError("meds.run_dir", str(paths.root), f"cannot be written to ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "meds.run_dir", str(paths.root), "is in use by another process; wait for it, or name another folder"
            ) from None
        try:
            yield
        except ConfigError:
            if fresh and not paths.config.exists():
                paths.lock.unlink()
                paths.root.rmdir()
            raise


@contextmanager
def _ray(job: Job, verbose: bool) -> Iterator[None]:
    """A connection to the cluster that RAY_ADDRESS names or `ray start` began here, or one of this machine alone."""
    own = not os.environ.get("RAY_ADDRESS")
    runtime_env: dict[str, Any] = {"env_vars": _worker_environment()}
    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}
    if job.on_cpu:
        runtime_env = {"env_vars": cpu.ENVIRONMENT, "worker_process_setup_hook": cpu.WORKER_HOOK}
        if own:
            options.update(
                address="local", num_gpus=cpu.MADE_UP_GPUS, num_cpus=cpu.MADE_UP_CPUS, include_dashboard=False
            )
    try:
        ray.init(runtime_env=runtime_env, **options)
    except ConnectionError as error:
        raise ConfigError(
            "RAY_ADDRESS", os.environ.get("RAY_ADDRESS"), f"names no cluster that answers: {str(error).splitlines()[0]}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _worker_environment() -> dict[str, str]:
    """OpenRLHF's defaults for its workers; what this process's environment or the submitted job sets stays."""
    defaults = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    given = job.get("runtime_env", {}).get("env_vars", {})  # Ray refuses a variable that is named twice
    return {name: os.environ.get(name, value) for name, value in defaults.items() if name not in given}


def _open_run_folder(job: Job) -> None:
    """From here on the folder holds a run."""
    StepLog(job.paths.metrics).cut_after(job.first_step)
    write_atomically(job.paths.config, job.config.as_yaml())


def _memory_format(job: Job) -> MemoryFormat:
    """The format of the run's memory, written down; a new one that branches from another gets its rows here."""
    settings, paths, memory = job.config.meds.memory, job.paths.memory, job.memory
    if settings.branch_from is not None and not paths.format.exists():
        memory = make_branch(Path(settings.branch_from), paths, memory)
    if settings.archive is not None and paths.snapshot(BRANCH_SNAPSHOT).exists():
        archive_snapshot(settings.archive, paths, BRANCH_SNAPSHOT)
    write_format(paths, memory)
    return memory


def _start_memory(job: Job, groups: dict[str, Any]) -> MemoryPool | None:
    if not job.config.meds.enabled:
        return None
    memory, memory_format = job.config.meds.memory, _memory_format(job)
    settings = ShardSettings(
        layers=job.memory.layers,
        transform=job.transform,
        method=method_of(memory),
        fsync=memory.fsync,
        forget_lost_rows=memory.on_lost == "forget",
    )
    shards = start_shards(job.paths.memory, memory_format, settings, shard_options(groups["memory"], memory.shards))
    config_hash = hashlib.sha256(job.config.as_yaml().encode()).hexdigest()
    return MemoryPool(shards, job.paths.memory.root, memory_format, config_hash, memory.archive)


def _train(job: Job, groups: dict[str, Any], on_step: Callable[[int, dict[str, float]], None]) -> None:
    from ray.util.queue import Empty, Queue

    from meds_openrlhf.training.trainer import TrainerContext

    steps = Queue(actor_options={"num_cpus": 0})
    pool = _start_memory(job, groups)
    context = TrainerContext(
        meds=job.config.meds,
        paths=job.paths,
        steps=steps,
        pool=pool,
        transform=job.transform,
        prompt_ids=job.prompt_ids,
        wandb_environment={name: value for name, value in os.environ.items() if name.startswith("WANDB_")},
    )
    models = start_models(job.args, job.strategy, groups, context)
    log = StepLog(job.paths.metrics)
    finished = models.trainer.fit.remote()
    while True:
        done, _ = ray.wait([finished], timeout=0)
        try:
            report = steps.get(timeout=1.0)
        except Empty:
            if done:
                break
            continue
        log.append(report.step, report.metrics)
        on_step(report.step, report.metrics)
    ray.get(finished)
    ray.get(models.policy.async_save_model())
    if models.critic is not None and job.args.critic.save_value_network:
        ray.get(models.critic.async_save_model())
