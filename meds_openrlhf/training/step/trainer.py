"""OpenRLHF's synchronous and asynchronous trainers, with a memory that is part of metrics, checkpoints and resume.

The trainers also survive lost engines and stop after a step on request.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import openrlhf.trainer.ppo_trainer as sync_module
import openrlhf.trainer.ppo_trainer_async as async_module
import ray
import transformers
from openrlhf.trainer.ppo_trainer import BasePPOTrainer, PPOTrainer

from meds_openrlhf.checkpoints import mark_complete, newest_complete, remove_stale, saved_tags
from meds_openrlhf.config import ConfigError
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.runtime.ray_connection import this_node
from meds_openrlhf.training.control import StepReport, Stopped
from meds_openrlhf.training.openrlhf.access import bound, plain_class, replaced
from meds_openrlhf.training.step.batches import arranged
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.experience import ExperienceMaker
from meds_openrlhf.training.step.log import RolloutSender, eval_line, evaluation_metrics
from meds_openrlhf.training.step.rollout import RolloutGenerator


class TrainingStopped(Exception):
    """Ends training after a step on request; the step's checkpoint is saved, unless ``ckpt.disable_ds`` is set."""


class MedsTraining(BasePPOTrainer):  # type: ignore[misc]
    """A mixin for OpenRLHF's trainers: memory, rollout log and engine fleet, checkpoints of all three, clean stops."""

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
        # What a model gets and does not train on, it would train on later, in place of newer experience.
        trains_policy = global_step > self.args.critic.freezing_steps
        models = [*([self.actor_model_group] if trains_policy else []), *filter(None, [self.critic_model_group])]
        ray.get([call for group in models for call in group.async_run_method_batch("append", experience=batches)])
        if self._context.recorder is not None:  # after the ranks have their work: writing uses the node's cores
            self._rollouts.send(result.rollouts.without_rows())
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

    # ── checkpoints of policy, data and memory together, and a clean stop after the current step ──

    def fit(self, global_step: int = 0) -> None:
        """Run OpenRLHF's training loop; at the end flush the rollout log, then tell the driver of a requested stop."""
        stopped = None
        try:
            super().fit(global_step)
        except TrainingStopped as stop:
            stopped = Stopped(*stop.args)
        self._rollouts.flush()
        if stopped is not None:
            self._context.tell(stopped)

    def save_logs_and_checkpoints(self, global_step: int, logs_dict: Any, client_states: dict[str, Any]) -> None:
        """Log the step and, at a checkpoint, save policy, memory and data atomically. Called by OpenRLHF's ``fit``.

        If the driver requested a stop, saves the step and raises TrainingStopped.
        """
        numbers = {k: float(v) for k, v in logs_dict.items() if isinstance(v, (int, float))}
        # Report before saving: after a crash a surplus line can be removed, but a missing line cannot be restored.
        if ray.get(self._context.control.report.remote(StepReport(global_step, numbers))):
            self._stop_after(global_step, logs_dict, client_states)
        self._save_if_due(global_step, logs_dict, client_states)

    def _stop_after(self, step: int, logs_dict: Any, client_states: dict[str, Any]) -> None:
        tag = f"global_step{step}"
        newest = newest_complete(self._context.paths)
        if newest is None or newest.tag != tag:
            self.args.ckpt.save_steps = step  # due now
            self._save_if_due(step, logs_dict, client_states)
        raise TrainingStopped(step, None if self.args.ckpt.disable_ds else tag)

    def _save_if_due(self, step: int, logs_dict: Any, client_states: dict[str, Any]) -> None:
        with self._saving(step % self.args.ckpt.save_steps == 0, f"global_step{step}", step, client_states) as states:
            super().save_logs_and_checkpoints(step, logs_dict, states)

    def save_best_checkpoint(self, eval_metrics: Any, global_step: int, client_states: Any = None) -> None:
        """Save OpenRLHF's best checkpoint, with the current memory. Called by OpenRLHF's ``fit`` after an evaluation.

        An asynchronous run evaluates step ``global_step`` but has advanced by the time the result arrives, so the saved
        step is that of the client state. Raises TrainingStopped on request, because evaluations take long.
        """
        evaluated, line = StepReport(global_step, eval_metrics), eval_line(global_step, eval_metrics)
        must_stop = ray.get(self._context.control.report_evaluation.remote(evaluated, line))
        client_states = client_states or {}
        step = client_states.get("global_step", global_step)
        key = self._detect_eval_metric_key(eval_metrics)
        is_best = key in eval_metrics and eval_metrics[key] > self.best_eval_metric_value
        with self._saving(is_best, f"best_global_step{global_step}", step, client_states) as states:
            super().save_best_checkpoint(eval_metrics, global_step, states)
        if step == global_step and must_stop:
            self._stop_after(step, None, client_states)

    @contextmanager
    def _saving(self, is_due: bool, tag: str, step: int, client_states: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """If ``is_due``, save memory and diversity before OpenRLHF saves, and then mark the checkpoint complete.

        Yields the client state for OpenRLHF to save, a copy that names the memory's snapshot.
        """
        if not is_due or self.args.ckpt.disable_ds:
            yield client_states
            return
        paths, pool = self._context.paths, self._context.pool
        self._rollouts.flush()
        if diversity := self.experience_maker.diversity:
            diversity.save(paths.diversity(tag))
        if pool is not None:
            pool.snapshot(tag)
        try:
            yield client_states if pool is None else {**client_states, "memory_snapshot": tag}
        except ray.exceptions.RayTaskError as error:
            if "inline_container" not in str(error):  # how torch.save names a file that it could not write
                raise
            problem = f"{paths.checkpoints}: the checkpoint {tag} could not be written; is the disk full?"
            raise OSError(errno.ENOSPC, problem) from error
        mark_complete(paths, tag, step)
        # On a shared disk, files from another node may appear with a delay.
        saved = saved_tags(paths) | {tag}
        remove_stale(paths, saved)
        if pool is not None:
            pool.prune_snapshots(saved)

    def init_checkpoint_states(self) -> dict[str, Any]:
        """Load a checkpoint's state except the weights, and restore the memory to the same step or to empty.

        Called by OpenRLHF's ``fit``. Raises ConfigError if the run has a memory and the checkpoint has none.
        """
        states: dict[str, Any] = super().init_checkpoint_states()
        paths, pool = self._context.paths, self._context.pool
        if pool is None:
            return states
        name = states.get("memory_snapshot")
        if states["global_step"] > 0 and name is None:
            hint = "the checkpoint was saved without a memory. Set false, or begin a new run."
            raise ConfigError("meds.enabled", True, hint)
        pool.restore(name)
        diversity = self.experience_maker.diversity
        if diversity is not None and name is not None and paths.diversity(name).exists():
            diversity.load(paths.diversity(name))
        return states


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
        halves = {name: bound(ray.remote(**near)(half), context=context) for name, half in ours.items()}
        with replaced(async_module, **halves):
            super().__init__(*args, **kwargs)
