"""Starts OpenRLHF's models in their placement groups."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from meds_openrlhf.placement.memory_estimate import EngineLimits
from meds_openrlhf.training.host.openrlhf import duplicates


@dataclass(frozen=True)
class Models:
    """The run's Ray actor handles: OpenRLHF's trainer, the vLLM engines, and each role's actor group."""

    trainer: Any
    engines: list[Any]
    groups: dict[str, Any]  # "policy", and "reference", "critic", "reward" if the recipe has them


def start_models(args: SimpleNamespace, groups: dict[str, Any], context: Any, limits: EngineLimits) -> Models:
    """Start engines, policy, other models and trainer, each in its placement group; returns when all are ready."""
    from openrlhf.trainer.ray.launcher import ReferenceModelActor, RewardModelActor
    from openrlhf.utils import get_strategy

    from meds_openrlhf.training.step.policy import PolicyActor
    from meds_openrlhf.training.step.update import CriticActor

    strategy = get_strategy(args)
    engines = _start_engines(args, groups, context.meds.features.answer_pattern, limits)
    policy_class = ray.remote(num_gpus=1, **policy_options(args))(PolicyActor)
    starters = {
        "policy": (args.actor, policy_class),
        "reference": (args.ref, ReferenceModelActor),
        "critic": (args.critic, ray.remote(num_gpus=1)(CriticActor)),
        "reward": (args.reward, RewardModelActor),
    }
    models: dict[str, Any] = {
        role: _start_group(args, role, settings, actor_class, groups) if role in groups else None
        for role, (settings, actor_class) in starters.items()
    }
    trainer = _start_trainer(args, strategy, models, engines, groups, context)
    ray.get(models["policy"].async_run_method("use_settings", context.meds.policy))
    _load_models(args, strategy, models, engines, trainer)
    ray.get(models["policy"].async_run_method("set_up_recording", context.meds.features, context.records_layers))
    present = {role: group for role, group in models.items() if group is not None}
    return Models(trainer=trainer, engines=engines or [], groups=present)


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
) -> list[Any] | None:
    from openrlhf.trainer.ray.vllm_engine import create_vllm_engines

    from meds_openrlhf.training.step.engine import restartable_engines

    if not args.vllm.num_engines:
        return None
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
    from transformers import AutoTokenizer

    from meds_openrlhf.rewards.boxed import answer_environment

    tokenizer = AutoTokenizer.from_pretrained(args.actor.model_name_or_path, trust_remote_code=True)
    return answer_environment(pattern, tokenizer.all_special_tokens)


def _start_group(
    args: SimpleNamespace, role: str, settings: SimpleNamespace, actor_class: Any, groups: dict[str, Any]
) -> Any:
    from openrlhf.trainer.ray.launcher import RayActorGroup

    shared = sum(group is groups[role] for group in groups.values()) > 1
    return RayActorGroup(
        settings.num_nodes,
        settings.num_gpus_per_node,
        actor_class,
        pg=groups[role],
        num_gpus_per_actor=0.2 if shared else 1,
        duplicate_actors=duplicates(args),
    )


def _start_trainer(
    args: SimpleNamespace,
    strategy: Any,
    models: dict[str, Any],
    engines: list[Any] | None,
    groups: dict[str, Any],
    context: Any,
) -> Any:
    from meds_openrlhf.training.step.trainer import MedsPPOTrainer, MedsPPOTrainerAsync

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
            critic_model_group=models["critic"],
            reward_model_group=models["reward"],
            reference_model_group=models["reference"],
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
    args: SimpleNamespace, strategy: Any, models: dict[str, Any], engines: list[Any] | None, trainer: Any
) -> None:
    """Load the weights; the critic's schedule needs the policy's, so it comes second."""
    max_steps = ray.get(trainer.get_max_steps.remote())
    pretrained = args.actor.model_name_or_path
    loading = models["policy"].async_init_model_from_pretrained(strategy, pretrained, max_steps, engines)
    if models["reference"] is not None:
        loading += models["reference"].async_init_model_from_pretrained(strategy, pretrained)
    if models["reward"] is not None and args.reward.model_name_or_path:
        loading += models["reward"].async_init_model_from_pretrained(strategy, args.reward.model_name_or_path)
    _wait_for(loading, engines or [])
    if models["critic"] is not None:
        ray.get(models["critic"].async_init_model_from_pretrained(strategy, args.critic.model_name_or_path, max_steps))


def _wait_for(loading: list[Any], engines: list[Any]) -> None:
    """Wait until all models are loaded; raises the error of a model or of an engine that cannot start.

    The policy waits for all engines, including failed ones, so this function must check the engines itself.
    """
    left = [*loading, *(engine.status.remote() for engine in engines)]
    while left:
        done, left = ray.wait(left)
        ray.get(done)
