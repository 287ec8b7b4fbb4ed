"""From a configuration to a finished run: check, reserve, start, drive, save. The driver's whole story."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.clustering import Clustering
from meds_openrlhf.memory.pool import MemoryPool, start_shards
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, write_format
from meds_openrlhf.paths import RunPaths, write_atomically
from meds_openrlhf.placement.groups import inventory, release, reserve, shard_options
from meds_openrlhf.placement.plan import Plan, make_plan, require_fit
from meds_openrlhf.tracking.step_log import StepLog
from meds_openrlhf.training import checks, cpu
from meds_openrlhf.training.arguments import parse_openrlhf_arguments
from meds_openrlhf.training.checkpoints import newest_complete, point_latest_to
from meds_openrlhf.training.roles import role_requests, start_models

REWARDS = {"math": Path(__file__).parents[1] / "rewards" / "math.py"}


@dataclass(frozen=True)
class Job:
    """A run that has passed every check and has started nothing."""

    config: RunConfig
    paths: RunPaths
    args: SimpleNamespace
    strategy: Any
    on_cpu: bool
    memory: MemoryFormat
    transform: FeatureTransform
    prompt_ids: dict[str, str] | None
    total_steps: int
    resume: bool
    first_step: int  # 0, or that of the checkpoint it goes on from

    @property
    def plan(self) -> Plan:
        """Where everything goes."""
        shards = self.memory.shards if self.config.meds.enabled else 0
        return make_plan(role_requests(self.args), shards, controller_cpus=1)


def run_training(
    config: RunConfig,
    *,
    resume: bool,
    verbose: bool = False,
    on_start: Callable[[Job], None],
    on_step: Callable[[int, dict[str, float]], None],
) -> None:
    """Train to the end. Raises ConfigError, with nothing started, for whatever the user can mend."""
    if os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") and not Path(config.meds.run_dir).is_absolute():
        raise ConfigError(
            "meds.run_dir",
            config.meds.run_dir,
            "is relative, and a submitted job runs in a copy of its folder that Ray "
            "throws away; name a folder from the root, on storage that every node sees",
        )
    paths = RunPaths(Path(config.meds.run_dir).absolute())
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


def prepare(config: RunConfig, paths: RunPaths, resume: bool) -> Job:
    """Every check that needs no cluster. Imports OpenRLHF, loads no model."""
    on_cpu = _runs_on_cpu(config)
    if on_cpu:
        cpu.install()
    checkpoint = newest_complete(paths) if resume else None
    args = parse_openrlhf_arguments(_flags(config, paths, on_cpu, load=checkpoint is not None))
    policy = checks.model_config(args.actor.model_name_or_path)
    memory = checks.memory_format(config, policy)
    checks.require_engines(args)
    checks.require_two_checkpoints(args)
    if config.meds.enabled:
        checks.require_recordable(args, policy)
        checks.require_features(config, policy)
        checks.require_memory_of(paths, memory)
    from openrlhf.utils import get_strategy

    strategy = get_strategy(args)
    data = checks.load_prompts(args, strategy, config.meds.memory.prompt_id_key)
    if checkpoint is not None:
        point_latest_to(paths, checkpoint.tag)
    return Job(
        config=config,
        paths=paths,
        args=args,
        strategy=strategy,
        on_cpu=on_cpu,
        memory=memory,
        transform=checks.feature_transform(config),
        prompt_ids=_prompt_ids(config, data, args),
        total_steps=ceil(min(len(data), args.data.max_samples) / args.rollout.batch_size) * args.train.num_episodes,
        resume=resume,
        first_step=checkpoint.step if checkpoint else 0,
    )


def _runs_on_cpu(config: RunConfig) -> bool:
    """Whether the CPU runtime stands in. A driver without a GPU may still belong to a cluster that has some."""
    if cpu.has_cuda():
        return False
    if not config.meds.allow_cpu and not os.environ.get("RAY_ADDRESS"):
        raise ConfigError(
            "meds.allow_cpu", False, "but this machine has no GPU; set RAY_ADDRESS to a cluster, or allow the CPU"
        )
    return config.meds.allow_cpu


def _prompt_ids(config: RunConfig, data: Any, args: SimpleNamespace) -> dict[str, str] | None:
    column = config.meds.memory.prompt_id_key
    if column is None or not config.meds.enabled:
        return None
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.actor.model_name_or_path, trust_remote_code=True)
    return checks.prompt_ids(data, args, tokenizer, column)


def _flags(config: RunConfig, paths: RunPaths, on_cpu: bool, load: bool) -> dict[str, Any]:
    """The run's flags for OpenRLHF, with those that the run folder and the reward decide."""
    decided = {
        "ckpt.path": str(paths.checkpoints),
        "ckpt.output_dir": str(paths.model),
        "ckpt.load_enable": load,
    }
    for key in decided:
        if key in config.openrlhf:
            raise ConfigError(key, config.openrlhf[key], "is decided by meds.run_dir (and --resume); leave it out")
    defaults: dict[str, Any] = {
        "logger.tensorboard_dir": str(paths.tensorboard),
        "logger.wandb.run_name": paths.root.name,
    }
    if on_cpu:
        defaults.update(cpu.FLAGS)
    if config.meds.reward is not None:
        if config.openrlhf.get("reward.remote_url"):
            raise ConfigError("meds.reward", config.meds.reward, "and reward.remote_url exclude each other")
        decided["reward.remote_url"] = str(REWARDS[config.meds.reward])
    return checks.with_absolute_paths({**defaults, **config.openrlhf, **decided})


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
    if job.config.meds.enabled:
        write_format(job.paths.memory, job.memory)
    StepLog(job.paths.metrics).cut_after(job.first_step)
    write_atomically(job.paths.config, job.config.as_yaml())


def _start_memory(job: Job, groups: dict[str, Any]) -> MemoryPool | None:
    if not job.config.meds.enabled:
        return None
    memory = job.config.meds.memory
    settings = ShardSettings(
        layers=job.memory.layers,
        transform=job.transform,
        clustering=Clustering(memory.min_cluster_size, memory.min_samples),
        neighbors=memory.neighbors,
        fsync=memory.fsync,
    )
    shards = start_shards(job.paths.memory, job.memory, settings, shard_options(groups["memory"], job.memory.shards))
    config_hash = hashlib.sha256(job.config.as_yaml().encode()).hexdigest()
    return MemoryPool(shards, job.paths.memory.root, job.memory, config_hash)


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
