"""OpenRLHF's trainers, synchronous and asynchronous, with a memory: metrics, checkpoints and resume take it along."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import Any

import openrlhf.trainer.ppo_trainer_async as async_module
import ray
import transformers
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.utils.logging_utils import WandbLogger

from meds_openrlhf.config import ConfigError, MedsSettings
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.branch import BRANCH_SNAPSHOT
from meds_openrlhf.memory.pool import MemoryPool
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.training.actor_classes import plain_class
from meds_openrlhf.training.checkpoints import mark_complete, remove_stale_markers, saved_tags
from meds_openrlhf.training.experience import MemoryExperienceMaker


@dataclass(frozen=True)
class StepReport:
    """One finished training step, as the console and the metrics file get it."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class TrainerContext:
    """What our trainers know beyond OpenRLHF's arguments. ``pool`` is None where the run has no memory."""

    meds: MedsSettings
    paths: RunPaths
    steps: Any  # ray.util.queue.Queue of StepReport
    pool: MemoryPool | None
    transform: FeatureTransform
    prompt_ids: dict[str, str] | None
    # The driver's WANDB_* variables: workers of a cluster have its nodes' environment. Keys, so never printed.
    wandb_environment: dict[str, str] = field(repr=False)


class MemoryTraining:
    """Mixed into OpenRLHF's trainers: each method does its part for the memory around OpenRLHF's own."""

    # OpenRLHF's, from the class that this one is mixed into.
    args: Any
    wandb_logger: Any
    experience_maker: Any
    best_eval_metric_value: float

    def __init__(self, *args: Any, context: TrainerContext, strategy: Any, **kwargs: Any) -> None:
        transformers.set_seed(strategy.args.train.seed)  # the order of the prompts is drawn from it
        os.environ.update(context.wandb_environment)
        super().__init__(*args, strategy=strategy, **kwargs)  # type: ignore[call-arg]
        self._context = context
        self._pool = context.pool
        if self._pool is not None:
            self.experience_maker = self._make_experience_maker(self._pool, strategy)
        if self.wandb_logger is None and wandb_wanted():
            self.wandb_logger = WandbLogger(self.args)

    def _make_experience_maker(self, pool: MemoryPool, strategy: Any) -> MemoryExperienceMaker:
        return MemoryExperienceMaker(
            self.actor_model_group,  # type: ignore[attr-defined]
            self.critic_model_group,  # type: ignore[attr-defined]
            self.reward_model_group,  # type: ignore[attr-defined]
            self.reference_model_group,  # type: ignore[attr-defined]
            self.kl_ctl,  # type: ignore[attr-defined]
            strategy=strategy,
            tokenizer=self.tokenizer,  # type: ignore[attr-defined]
            pool=pool,
            transform=self._context.transform,
            penalty=self._context.meds.penalty,
            remember=self._context.meds.memory.remember,
            prompt_ids=self._context.prompt_ids,
        )

    def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        """One step; its number, also in the memory, is ``global_step + 1``."""
        if self._pool is not None:
            self.experience_maker.step = global_step + 1
        status, finished = super().train_step(rollout_samples, global_step)  # type: ignore[misc]
        if self._pool is not None:
            status.update(self.experience_maker.metrics)
        return status, finished

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: Any = None, client_states: dict[str, Any] | None = None
    ) -> None:
        """Log, and at a checkpoint save memory and policy so that they count as one: both or neither."""
        numbers = {k: float(v) for k, v in (logs_dict or {}).items() if isinstance(v, (int, float))}
        # Reported first: after a crash a line too many is cut, one that is missing could not be restored.
        self._context.steps.put(StepReport(global_step, numbers))
        client_states = {} if client_states is None else client_states
        saves = global_step % self.args.ckpt.save_steps == 0 and not self.args.ckpt.disable_ds
        tag = f"global_step{global_step}"
        if saves:
            self._snapshot(tag, client_states)
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)  # type: ignore[misc]
        if saves:
            self._mark_complete(tag, global_step)

    def save_best_checkpoint(self, eval_metrics: Any, global_step: int, client_states: Any = None) -> None:
        """OpenRLHF's best checkpoint, with the memory as it is now.

        An asynchronous run evaluates step ``global_step`` and is further on by the time that it hears the result: the
        step of what is saved is the client state's.
        """
        client_states = dict(client_states or {})
        before = self.best_eval_metric_value
        tag = f"best_global_step{global_step}"
        self._snapshot(tag, client_states)
        super().save_best_checkpoint(eval_metrics, global_step, client_states)  # type: ignore[misc]
        if self.best_eval_metric_value > before and not self.args.ckpt.disable_ds:
            self._mark_complete(tag, client_states.get("global_step", global_step))
        elif self._pool is not None:
            self._pool.prune_snapshots({*saved_tags(self._context.paths), BRANCH_SNAPSHOT})  # not the best: not saved

    def init_checkpoint_states(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights; the memory goes back to the same moment, or to nothing."""
        states: dict[str, Any] = super().init_checkpoint_states()  # type: ignore[misc]
        if self._pool is not None:
            name = states.get("memory_snapshot")
            if states["global_step"] > 0 and name is None:
                raise ConfigError("meds.enabled", True, "does not fit this checkpoint; it was saved without a memory")
            start = BRANCH_SNAPSHOT if self._pool.has_snapshot(BRANCH_SNAPSHOT) else None
            self._pool.restore(name or start)
        return states

    def _snapshot(self, tag: str, client_states: dict[str, Any]) -> None:
        if self._pool is not None:
            self._pool.snapshot(tag)
            client_states["memory_snapshot"] = tag

    def _mark_complete(self, tag: str, step: int) -> None:
        """The last thing written of a checkpoint. Markers and manifests of checkpoints that are gone go too."""
        paths = self._context.paths
        mark_complete(paths, tag, step)
        saved = saved_tags(paths) | {tag}  # a shared disk may be slow to show what another node has written
        remove_stale_markers(paths, saved)
        if self._pool is not None:
            self._pool.prune_snapshots({*saved, BRANCH_SNAPSHOT})


class MemoryPPOTrainer(MemoryTraining, plain_class(PPOTrainer)):  # type: ignore[misc]
    """OpenRLHF's synchronous trainer with a memory."""


class MemoryTrainingActor(MemoryTraining, plain_class(async_module.TrainingActor)):  # type: ignore[misc]
    """The training half of OpenRLHF's asynchronous trainer, with a memory."""

    def broadcast_to_vllm(self) -> None:
        """OpenRLHF's, reached by import.

        Ray wraps every method of an actor class and pickles those that it cannot find by name, inherited ones of a
        decorated class among them, with a copy of their class; this one calls super(), which a copy breaks.
        """
        super().broadcast_to_vllm()


class SeededSamplesActor(plain_class(async_module.GenerateSamplesActor)):  # type: ignore[misc]
    """The generating half: only the order of its prompts is ours to fix."""

    def __init__(self, pretrain: str, strategy: Any, *args: Any, **kwargs: Any) -> None:
        transformers.set_seed(strategy.args.train.seed)
        super().__init__(pretrain, strategy, *args, **kwargs)


class MemoryPPOTrainerAsync(plain_class(async_module.PPOTrainerAsync)):  # type: ignore[misc]
    """OpenRLHF's asynchronous trainer; it makes its two halves by name, so the names stand for ours meanwhile."""

    def __init__(self, *args: Any, context: TrainerContext, **kwargs: Any) -> None:
        training, generating = async_module.TrainingActor, async_module.GenerateSamplesActor
        async_module.TrainingActor = _Remote(MemoryTrainingActor, context=context)
        async_module.GenerateSamplesActor = _Remote(SeededSamplesActor)
        try:
            super().__init__(*args, **kwargs)
        finally:
            async_module.TrainingActor, async_module.GenerateSamplesActor = training, generating


class _Remote:
    """Looks like a Ray actor class with some arguments given."""

    def __init__(self, plain: type, **given: Any) -> None:
        self.remote = functools.partial(ray.remote(num_cpus=0)(plain).remote, **given)


def wandb_wanted() -> bool:
    """Whether the environment asks for Weights & Biases: by a key, or by its offline mode."""
    mode = os.environ.get("WANDB_MODE", "")
    return mode != "disabled" and bool(os.environ.get("WANDB_API_KEY") or mode == "offline")
