"""From a configuration to a job that has passed every check and has started nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from meds_openrlhf.config import ConfigError, RunConfig
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.settings import feature_transform
from meds_openrlhf.memory.snapshot import MemoryFormat
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.placement.plan import Plan, make_plan
from meds_openrlhf.training import checks, cpu
from meds_openrlhf.training.arguments import parse_openrlhf_arguments
from meds_openrlhf.training.checkpoints import newest_complete, point_latest_to
from meds_openrlhf.training.roles import role_requests

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
        memory = checks.require_memory_of(config, paths, memory)
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
        transform=feature_transform(config.meds.features),
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
