"""Starts all actors of a run: the memory, vLLM engines, OpenRLHF's models and trainer, each in its placement group.

Importing this module imports OpenRLHF, which takes many seconds, so it is imported after the checks of a run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.trainer.ray.launcher import RayActorGroup, ReferenceModelActor, RewardModelActor
from openrlhf.trainer.ray.vllm_engine import create_vllm_engines
from openrlhf.utils import get_strategy
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.checkpoints import whole_checkpoints
from meds_openrlhf.config import MedsSettings
from meds_openrlhf.memory.pool import MemoryPool, start_shards
from meds_openrlhf.memory.shard import ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, rewrite_memory, write_format
from meds_openrlhf.placement.batching import Batching
from meds_openrlhf.placement.engine_limits import EngineLimits
from meds_openrlhf.placement.ray_cluster import shard_options
from meds_openrlhf.placement.roles import engines_share_gpus
from meds_openrlhf.rewards.grading import answer_environment
from meds_openrlhf.rollouts.recorder import RolloutRecorder
from meds_openrlhf.rollouts.texts import write_reader
from meds_openrlhf.runtime.ray_connection import WITHOUT_TENSORS, this_node
from meds_openrlhf.training.control import start_run_control
from meds_openrlhf.training.loop import AsynchronousRun, SynchronousRun
from meds_openrlhf.training.start.prepare import Job
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.engine import restartable_engines
from meds_openrlhf.training.step.policy import PolicyActor
from meds_openrlhf.training.step.update import CriticActor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Actors:
    """The run's Ray actors: control, memory shards, vLLM engines, each role's group of ranks, and the trainer."""

    control: Any
    shards: list[Any]
    engines: list[Any]
    models: dict[str, Any]  # by role: "policy", and "reference", "critic", "reward" if the run has them
    trainer: Any


def start_actors(job: Job, limits: EngineLimits, groups: dict[str, Any]) -> Actors:
    """Start mailbox, memory, engines, models and trainer, each in its placement group; return when all are ready."""
    args, meds = job.args, _for_workers(job.config.meds)
    control = start_run_control(job.paths)
    shards, pool = _start_memory(job, groups)
    context = TrainerContext(
        meds=meds,
        paths=job.paths,
        control=control,
        pool=pool,
        feature=job.feature,
        recorder=_start_recorder(job),
        first_step=job.first_step,
    )
    strategy = get_strategy(args)
    # Tells the rewards, which engines call, how to find answers outside boxes.
    environment = answer_environment(meds.features.answer_pattern, job.tokenizer.all_special_tokens)
    has_experts = job.models["engines"].unusual.experts
    of_vllm = vllm_options(limits, has_experts, job.on_cpu, args.ds.param_dtype)
    engines = _start_engines(args, groups, environment, of_vllm)
    models = _start_models(args, groups)
    trainer = _start_trainer(strategy, models, engines, groups["policy"], context)
    _load_models(strategy, models, engines, trainer, context)
    return Actors(control, shards, engines, models, trainer)


def _for_workers(meds: MedsSettings) -> MedsSettings:
    """Make the path of the user's feature absolute, because workers have other working directories."""
    file = meds.features.function
    return meds if file is None else replace(meds, features=replace(meds.features, function=str(Path(file).absolute())))


def _start_memory(job: Job, groups: dict[str, Any]) -> tuple[list[Any], MemoryPool | None]:
    """Start the memory; return the shards' handles and the pool, or an empty list and None without a memory.

    Rewrites a memory of another number of shards.
    """
    meds, paths = job.config.meds, job.paths.memory
    memory_format = MemoryFormat.of(meds, job.feature)
    if not meds.enabled:
        return [], None
    tags = {checkpoint.tag for checkpoint in whole_checkpoints(job.paths)}
    rewrite_memory(paths, memory_format, meds.lock_seconds, tags)
    write_format(paths, memory_format)
    settings = ShardSettings.of(meds, memory_format.layers)
    options = [{**options, **WITHOUT_TENSORS} for options in shard_options(groups["memory"], meds.memory.shards)]
    shards = start_shards(paths, memory_format, settings, options)
    return shards, MemoryPool(shards, paths.root, memory_format)


def _start_recorder(job: Job) -> Any:
    """Start the rollout recorder on this node, whose disk has the run folder; return None if it is not needed."""
    features, keep = job.config.meds.features, job.config.meds.tracking.rollouts
    if keep == "none" and not job.config.meds.enabled:
        return None
    model, tokenizer = job.args.actor.model_name_or_path, job.paths.tokenizer
    reader = write_reader(model, features.answer_pattern, tokenizer)
    placed = {"num_cpus": 0, "scheduling_strategy": this_node(), **WITHOUT_TENSORS}
    return ray.remote(max_restarts=-1, **placed)(RolloutRecorder).remote(job.paths, reader, keep)


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
            duplicate_actors=Batching.of(args).duplicates,
        )
        for role, (settings, actor_class) in roles.items()
        if role in groups
    }


def policy_options(args: SimpleNamespace) -> dict[str, Any]:
    """Return the Ray options of the policy's ranks.

    Ray gives a process as many OpenMP threads as it has CPUs, which is 1 here. With ``ds.adam_offload`` the optimizer
    runs on the CPU, so the ranks of a node share all of its CPUs.
    """
    if not args.ds.adam_offload:
        return {}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    threads = min((int(node.get("CPU", 0) / node["GPU"]) for node in nodes), default=1)
    return {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(max(threads, 1))}}}


def vllm_options(limits: EngineLimits, has_experts: bool, on_cpu: bool, param_dtype: str) -> dict[str, Any]:
    """Return the arguments of vLLM's that OpenRLHF leaves out, or that are other than OpenRLHF's.

    Its kernels for experts may keep their weights in a layout of their own, into which a weight sync would write plain
    weights (vLLM issue 42821); Triton's take plain ones.
    """
    return {
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "logprobs_mode": "processed_logprobs",  # of the distribution that tokens are drawn from, for `vllm_kl`
        **({"moe_backend": "triton"} if has_experts and not on_cpu else {}),
        **({"dtype": "float32"} if param_dtype == "fp32" else {}),
    }


def _start_engines(
    args: SimpleNamespace, groups: dict[str, Any], environment: dict[str, str], of_vllm: dict[str, Any]
) -> list[Any]:
    with restartable_engines(environment, **of_vllm):
        engines: list[Any] = create_vllm_engines(
            args.vllm.num_engines,
            args.vllm.tensor_parallel_size,
            args.actor.model_name_or_path,
            args.train.seed,
            args.train.full_determinism_enable,
            args.vllm.enable_prefix_caching,
            args.vllm.enforce_eager,
            args.data.max_len,
            shared_pg=groups["engines"],  # otherwise, OpenRLHF creates a group
            gpu_memory_utilization=args.vllm.gpu_memory_utilization,
            vllm_enable_sleep=args.vllm.enable_sleep,
            agent_func_path=args.train.agent_func_path,
            remote_rm_url=args.reward.remote_url,
            max_images_per_prompt=args.data.max_images_per_prompt,
        )
    return engines


def _start_trainer(
    strategy: Any, models: dict[str, Any], engines: list[Any], policy_group: Any, context: TrainerContext
) -> Any:
    run = AsynchronousRun if strategy.args.train.async_enable else SynchronousRun
    # On the node of the policy's first rank, whose loss ends the run anyway; otherwise Ray would choose any node.
    beside = PlacementGroupSchedulingStrategy(policy_group, placement_group_bundle_index=0)
    return ray.remote(num_cpus=0, scheduling_strategy=beside)(run).remote(strategy, models, engines, context)


def _load_models(
    strategy: Any, models: dict[str, Any], engines: list[Any], trainer: Any, context: TrainerContext
) -> None:
    """Load the weights; the critic's after the policy's, as OpenRLHF does."""
    args, max_steps = strategy.args, ray.get(trainer.get_max_steps.remote())
    if engines_share_gpus(args) and any(ray.get(models["policy"].async_run_method("leave_expandable_segments"))):
        logger.warning("expandable_segments is switched off in the policy's ranks, whose memory engines map")
    pretrained = args.actor.model_name_or_path
    loading = models["policy"].async_init_model_from_pretrained(
        strategy, pretrained, max_steps, engines, meds=context.meds, feature=context.feature
    )
    for role, path in (("reference", pretrained), ("reward", args.reward.model_name_or_path)):
        if role in models:
            loading += models[role].async_init_model_from_pretrained(strategy, path)
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
