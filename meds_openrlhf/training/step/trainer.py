"""OpenRLHF's synchronous and asynchronous trainers, with a memory that is part of metrics, checkpoints and resume.

The trainers also survive lost engines and stop after a step on request.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import openrlhf.trainer.ppo_trainer as sync_module
import openrlhf.trainer.ppo_trainer_async as async_module
import ray
import transformers
from openrlhf.trainer.ppo_trainer import BasePPOTrainer, PPOTrainer

from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.host.openrlhf import BoundActor, plain_class, replaced
from meds_openrlhf.training.step.batches import arranged
from meds_openrlhf.training.step.checkpoint import CheckpointedTraining
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.experience import ExperienceMaker
from meds_openrlhf.training.step.log import RolloutSender, evaluation_metrics, step_rollouts
from meds_openrlhf.training.step.rollout import RolloutGenerator
from meds_openrlhf.training.watch.control import TrainerContext, this_node


class MedsTraining(CheckpointedTraining):
    """A mixin for OpenRLHF's trainers that adds the memory, if there is one, the rollout log and the engine fleet."""

    vllm_engines: list[Any]

    def __init__(self, *args: Any, context: TrainerContext, strategy: Any, **kwargs: Any) -> None:
        transformers.set_seed(strategy.args.train.seed)  # it determines the order of the prompts
        with replaced(sync_module, RemoteExperienceMaker=partial(ExperienceMaker, context=context)):
            super().__init__(*args, strategy=strategy, **kwargs)
        self._context = context
        self._rollouts = RolloutSender(context.recorder, context.tell)
        self._fleet = EngineFleet(self.vllm_engines, context.tell)
        self.vllm_engines = self._fleet.usable

    def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        """Train step ``global_step + 1``, also its number in the memory. Replaces OpenRLHF's; called by its ``fit``."""
        step, started = global_step + 1, time.perf_counter()
        result = self.experience_maker.make_step(rollout_samples, step)
        rollout_stats = self._compute_rollout_stats(result.experiences)
        batches = arranged(result.experiences, self.args, step, self._context.meds.policy.minibatches)
        made = time.perf_counter()
        models = [group for group in (self.actor_model_group, self.critic_model_group) if group is not None]
        ray.get([call for group in models for call in group.async_run_method_batch("append", experience=batches)])
        if self._context.recorder is not None:  # after the ranks have their work: writing uses the node's cores
            self._rollouts.send(step_rollouts(step, result))
        sent = time.perf_counter()
        status = self.ppo_train(global_step)
        trained = time.perf_counter()
        self.broadcast_to_vllm()
        if "kl" in status:
            self.kl_ctl.update(status["kl"], self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt)
        times = {
            "timing/make_experience": made - started,
            "timing/ppo_train": trained - sent,
            "timing/broadcast": time.perf_counter() - trained,
        }
        return {**status, **times, **rollout_stats, **result.metrics}, step


class EngineSync(BasePPOTrainer):  # type: ignore[misc]
    """Comes after OpenRLHF's trainers in the method resolution order, so asynchronous runs call it under their lock."""

    _fleet: EngineFleet

    def broadcast_to_vllm(self) -> None:
        """Run OpenRLHF's weight sync with all available engines, including restarted engines.

        Raises RunLostError if an engine is lost during the sync.
        """
        if self._fleet.take_in_restarted():
            if self.args.vllm.sync_with_ray:
                raise RunLostError("a vLLM engine was lost, and cannot rejoin with vllm.sync_with_ray")
            ray.get(self.actor_model_group.async_run_method("use_engines", engines=list(self._fleet.usable)))
        try:
            super().broadcast_to_vllm()
            self._fleet.note_sync()
        except ray.exceptions.RayError as error:
            if not self._fleet.is_loss(error):
                raise
            raise RunLostError("a vLLM engine was lost while it received the policy's weights") from error


class MedsPPOTrainer(MedsTraining, plain_class(PPOTrainer), EngineSync):  # type: ignore[misc]
    """OpenRLHF's synchronous trainer with the additions of this package."""

    samples_generator: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.samples_generator = RolloutGenerator(
            self.samples_generator, self._fleet, self._context, sync_weights=self.broadcast_to_vllm
        )
        self.prompts_dataloader = self.samples_generator.prompts_dataloader
        self._eval_metrics = evaluation_metrics(self._context.meds, self.tokenizer)

    def evaluate(self, global_step: int, **generate_kwargs: Any) -> dict[str, float]:
        """Run OpenRLHF's evaluation with unbiased metrics."""
        with replaced(sync_module, compute_eval_metrics=self._eval_metrics):
            metrics: dict[str, float] = super().evaluate(global_step, **generate_kwargs)
        return metrics


class MedsTrainingActor(MedsTraining, plain_class(async_module.TrainingActor), EngineSync):  # type: ignore[misc]
    """The training half of OpenRLHF's asynchronous trainer."""

    def broadcast_to_vllm(self) -> None:
        """Run the weight sync; defined here so that Ray finds the method by import.

        Ray pickles methods that it cannot find by name, such as those inherited from a decorated class, with a copy of
        their class. The inherited method calls super(), which fails on a copy.
        """
        if self.args.train.partial_rollout_enable:  # OpenRLHF pauses the engines that it knows, and one may be lost
            self._fleet.keep_those_with_weights()
        super().broadcast_to_vllm()


class MedsSamplesActor(plain_class(async_module.GenerateSamplesActor)):  # type: ignore[misc]
    """The generating half of OpenRLHF's asynchronous trainer; it loses no prompts if an engine dies."""

    samples_generator: Any

    def __init__(
        self, pretrain: str, strategy: Any, vllm_engines: list[Any], *, context: TrainerContext, **kwargs: Any
    ) -> None:
        transformers.set_seed(strategy.args.train.seed)
        super().__init__(pretrain, strategy, vllm_engines, **kwargs)
        self._eval_metrics = evaluation_metrics(context.meds, self.samples_generator.tokenizer)
        fleet = EngineFleet(vllm_engines, context.tell)
        self.samples_generator = RolloutGenerator(self.samples_generator, fleet, context, sync_weights=None)
        self.prompts_dataloader = self.samples_generator.prompts_dataloader

    def _run_eval(self) -> dict[str, float]:
        """Run OpenRLHF's evaluation with unbiased metrics."""
        with replaced(async_module, compute_eval_metrics=self._eval_metrics):
            metrics: dict[str, float] = super()._run_eval()
        return metrics


class MedsPPOTrainerAsync(plain_class(async_module.PPOTrainerAsync)):  # type: ignore[misc]
    """OpenRLHF's asynchronous trainer. It looks up the classes of its two halves by name; `__init__` replaces them."""

    def __init__(self, *args: Any, context: TrainerContext, **kwargs: Any) -> None:
        near = {"num_cpus": 0, "scheduling_strategy": this_node(soft=True)}
        ours = {"TrainingActor": MedsTrainingActor, "GenerateSamplesActor": MedsSamplesActor}
        halves = {name: BoundActor(ray.remote(**near)(half), {"context": context}) for name, half in ours.items()}
        with replaced(async_module, **halves):
            super().__init__(*args, **kwargs)
