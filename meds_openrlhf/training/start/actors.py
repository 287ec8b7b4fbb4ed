"""Starts all actors of a run: the memory, vLLM engines, OpenRLHF's models and trainer, each in its placement group.

Imports OpenRLHF, which takes many seconds, so it is imported itself when the checks of a run have passed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.trainer.ray.launcher import RayActorGroup, ReferenceModelActor, RewardModelActor
from openrlhf.trainer.ray.vllm_engine import create_vllm_engines
from openrlhf.utils import get_strategy
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from transformers import AutoTokenizer

from meds_openrlhf.config import MedsSettings
from meds_openrlhf.features.answer import AnswerOpenings
from meds_openrlhf.features.settings import feature_transform, features_of_rows
from meds_openrlhf.memory.branch import make_branch, rewrite_memory
from meds_openrlhf.memory.pool import MemoryPool, start_shards
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.snapshot import write_format
from meds_openrlhf.placement.groups import shard_options
from meds_openrlhf.placement.memory_estimate import EngineLimits
from meds_openrlhf.rewards.boxed import answer_environment
from meds_openrlhf.tracking.response_texts import ResponseReader
from meds_openrlhf.tracking.rollout_recorder import RolloutRecorder
from meds_openrlhf.training.host.openrlhf import duplicates
from meds_openrlhf.training.start.placing import Placement
from meds_openrlhf.training.start.prepare import Job
from meds_openrlhf.training.step.engine import restartable_engines
from meds_openrlhf.training.step.policy import PolicyActor
from meds_openrlhf.training.step.trainer import MedsPPOTrainer, MedsPPOTrainerAsync
from meds_openrlhf.training.step.update import CriticActor
from meds_openrlhf.training.watch.control import TrainerContext, start_run_control, this_node


@dataclass(frozen=True)
class Actors:
    """The run's Ray actors: OpenRLHF's trainer, the vLLM engines, each role's group of ranks, and ours."""

    control: Any
    shards: list[Any]
    engines: list[Any]
    models: dict[str, Any]  # "policy", and "reference", "critic", "reward" if the recipe has them
    trainer: Any


def start_actors(job: Job, placement: Placement, groups: dict[str, Any]) -> Actors:
    """Start mailbox, memory, engines, models and trainer, each in its placement group; return when all are ready."""
    args, meds = placement.args, _for_workers(job.config.meds)
    control = start_run_control(job.paths)
    shards, pool = _start_memory(job, groups)
    context = TrainerContext(
        meds=meds,
        paths=job.paths,
        control=control,
        pool=pool,
        transform=feature_transform(features_of_rows(meds.features, meds.memory)),
        records_layers=job.memory.records_layers,
        recorder=_start_recorder(job),
        first_step=job.start.step,
    )
    strategy = get_strategy(args)
    engines = _start_engines(args, groups, meds.features.answer_pattern, placement.report.limits)
    models = _start_models(args, groups)
    trainer = _start_trainer(args, strategy, models, engines, groups, context)
    _load_models(args, strategy, models, engines, trainer, context)
    return Actors(control, shards, engines, models, trainer)


def _for_workers(meds: MedsSettings) -> MedsSettings:
    """Return the settings with an absolute path of the user's feature: workers have other working directories."""
    file = meds.features.function
    return meds if file is None else replace(meds, features=replace(meds.features, function=str(Path(file).absolute())))


def _start_memory(job: Job, groups: dict[str, Any]) -> tuple[list[Any], MemoryPool | None]:
    """Start the memory; return the shards' handles and the pool, or an empty list and None without a memory.

    A new memory that branches from another gets its rows here, and an old one is rewritten if it has to be.
    """
    meds, paths, memory_format = job.config.meds, job.paths.memory, job.memory.format
    if not meds.enabled:
        return [], None
    rewrite_memory(paths, memory_format, meds.lock_seconds)
    if meds.memory.branch_from is not None and not paths.format.exists():
        memory_format = make_branch(Path(meds.memory.branch_from), paths, memory_format)
    write_format(paths, memory_format)
    transform = feature_transform(features_of_rows(meds.features, meds.memory))
    settings = ShardSettings(memory_format.layers, transform, meds.memory.method, meds.lock_seconds)
    shards = start_shards(paths, memory_format, settings, shard_options(groups["memory"], meds.memory.shards))
    config_hash = hashlib.sha256(job.config.as_yaml().encode()).hexdigest()
    return shards, MemoryPool(shards, paths.root, memory_format, config_hash)


def _start_recorder(job: Job) -> Any:
    """Start the rollout recorder on this node, whose disk has the run folder; None if it is not needed."""
    features, keep = job.config.meds.features, job.config.meds.tracking.rollouts
    if keep == "none" and not job.config.meds.enabled:
        return None
    answers = AnswerOpenings(features.answer_openings, features.answer_pattern)
    reader = ResponseReader.of(job.request.args.actor.model_name_or_path, answers, job.paths.tokenizer)
    actor = ray.remote(num_cpus=0, max_restarts=-1)(RolloutRecorder).options(scheduling_strategy=this_node())
    return actor.remote(job.paths, reader, keep)


def _start_models(args: SimpleNamespace, groups: dict[str, Any]) -> dict[str, Any]:
    """Start the ranks of each role that the run has."""
    roles = {
        "policy": (args.actor, ray.remote(num_gpus=1, **policy_options(args))(PolicyActor)),
        "reference": (args.ref, ReferenceModelActor),
        "critic": (args.critic, ray.remote(num_gpus=1)(CriticActor)),
        "reward": (args.reward, RewardModelActor),
    }
    return {
        role: RayActorGroup(
            settings.num_nodes,
            settings.num_gpus_per_node,
            actor_class,
            pg=groups[role],
            num_gpus_per_actor=0.2 if sum(group is groups[role] for group in groups.values()) > 1 else 1,
            duplicate_actors=duplicates(args),
        )
        for role, (settings, actor_class) in roles.items()
        if role in groups
    }


def policy_options(args: SimpleNamespace) -> dict[str, Any]:
    """Return the Ray options of the policy's ranks.

    Ray gives a process as many OpenMP threads as it has CPUs, one. With ``ds.adam_offload`` the optimizer runs there,
    so the ranks share all CPUs of their node.
    """
    if not args.ds.adam_offload:
        return {}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    threads = min((int(node.get("CPU", 0) / node["GPU"]) for node in nodes), default=1)
    return {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(max(threads, 1))}}}


def _start_engines(
    args: SimpleNamespace, groups: dict[str, Any], answer_pattern: str | None, limits: EngineLimits
) -> list[Any]:
    of_vllm = {"max_num_seqs": limits.max_num_seqs, "max_num_batched_tokens": limits.max_num_batched_tokens}
    with restartable_engines(_answer_environment(args, answer_pattern), **of_vllm):
        engines: list[Any] = create_vllm_engines(
            args.vllm.num_engines,
            args.vllm.tensor_parallel_size,
            args.actor.model_name_or_path,
            args.train.seed,
            args.train.full_determinism_enable,
            args.vllm.enable_prefix_caching,
            args.vllm.enforce_eager,
            args.data.max_len,
            shared_pg=groups["engines"],  # with a group given, OpenRLHF creates none
            gpu_memory_utilization=args.vllm.gpu_memory_utilization,
            vllm_enable_sleep=args.vllm.enable_sleep,
            logprobs_mode="processed_logprobs" if args.algo.advantage.is_correction_level != "off" else None,
            agent_func_path=args.train.agent_func_path,
            remote_rm_url=args.reward.remote_url,
            max_images_per_prompt=args.data.max_images_per_prompt,
        )
    return engines


def _answer_environment(args: SimpleNamespace, pattern: str | None) -> dict[str, str]:
    """Return what tells the rewards, which the engines call, how to find answers; nothing for those in boxes."""
    if pattern is None:
        return {}
    tokenizer = AutoTokenizer.from_pretrained(args.actor.model_name_or_path, trust_remote_code=True)
    return answer_environment(pattern, tokenizer.all_special_tokens)


def _start_trainer(
    args: SimpleNamespace,
    strategy: Any,
    models: dict[str, Any],
    engines: list[Any],
    groups: dict[str, Any],
    context: Any,
) -> Any:
    trainer_class = MedsPPOTrainerAsync if args.train.async_enable else MedsPPOTrainer
    # On the node of the policy's first rank, whose loss ends the run anyway; otherwise Ray would choose any node.
    beside = PlacementGroupSchedulingStrategy(groups["policy"], placement_group_bundle_index=0)
    return (
        ray.remote(num_cpus=0)(trainer_class)
        .options(scheduling_strategy=beside)
        .remote(
            args.actor.model_name_or_path,
            strategy=strategy,
            actor_model_group=models["policy"],
            critic_model_group=models.get("critic"),
            reward_model_group=models.get("reward"),
            reference_model_group=models.get("reference"),
            vllm_engines=engines,
            context=context,
            do_sample=True,
            max_len=args.data.max_len,
            max_new_tokens=args.rollout.max_new_tokens,
            temperature=args.rollout.temperature,
            top_p=args.rollout.top_p,
        )
    )


def _load_models(
    args: SimpleNamespace,
    strategy: Any,
    models: dict[str, Any],
    engines: list[Any],
    trainer: Any,
    context: TrainerContext,
) -> None:
    """Load the weights; the critic's schedule needs the policy's, so it comes second."""
    max_steps = ray.get(trainer.get_max_steps.remote())
    pretrained = args.actor.model_name_or_path
    loading = models["policy"].async_init_model_from_pretrained(
        strategy, pretrained, max_steps, engines, meds=context.meds, records_layers=context.records_layers
    )
    if "reference" in models:
        loading += models["reference"].async_init_model_from_pretrained(strategy, pretrained)
    if "reward" in models and args.reward.model_name_or_path:
        loading += models["reward"].async_init_model_from_pretrained(strategy, args.reward.model_name_or_path)
    _wait_for(loading, engines)
    if "critic" in models:
        ray.get(models["critic"].async_init_model_from_pretrained(strategy, args.critic.model_name_or_path, max_steps))


def _wait_for(loading: list[Any], engines: list[Any]) -> None:
    """Wait until all models are loaded; raises the error of a model or of an engine that cannot start.

    The policy waits for all engines, including failed ones, so this function must check the engines itself.
    """
    left = [*loading, *(engine.status.remote() for engine in engines)]
    while left:
        done, left = ray.wait(left)
        ray.get(done)
