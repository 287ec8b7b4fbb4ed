"""Checkpoints of policy, data and memory together, and a clean stop after the current step."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from openrlhf.trainer.ppo_trainer import BasePPOTrainer

from meds_openrlhf.checkpoints import mark_complete, newest_complete, remove_stale, saved_tags
from meds_openrlhf.config import ConfigError
from meds_openrlhf.memory.snapshot import BRANCH_SNAPSHOT
from meds_openrlhf.training.step.experience import ExperienceMaker
from meds_openrlhf.training.step.log import RolloutSender, eval_line
from meds_openrlhf.training.watch.control import StepReport, Stopped, TrainerContext


class TrainingStopped(Exception):
    """Ends training after a step on request; the step's checkpoint is saved, unless ``ckpt.disable_ds`` is set."""


class CheckpointedTraining(BasePPOTrainer):  # type: ignore[misc]
    """A mixin for OpenRLHF's trainers that saves policy, data and memory atomically and handles stop requests."""

    # Attributes of the subclass in this package.
    experience_maker: ExperienceMaker
    _context: TrainerContext
    _rollouts: RolloutSender

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
        if eval_metrics:
            evaluated, line = StepReport(global_step, eval_metrics), eval_line(global_step, eval_metrics)
            ray.get(self._context.control.report_evaluation.remote(evaluated, line))
        client_states = client_states or {}
        step = client_states.get("global_step", global_step)
        key = self._detect_eval_metric_key(eval_metrics)
        is_best = key in eval_metrics and eval_metrics[key] > self.best_eval_metric_value
        with self._saving(is_best, f"best_global_step{global_step}", step, client_states) as states:
            super().save_best_checkpoint(eval_metrics, global_step, states)
        if step == global_step and ray.get(self._context.control.stop_is_requested.remote()):
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
            pool.prune_snapshots({*saved, BRANCH_SNAPSHOT})

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
        start = BRANCH_SNAPSHOT if paths.memory.snapshot(BRANCH_SNAPSHOT).exists() else None
        pool.restore(name or start)
        diversity = self.experience_maker.diversity
        if diversity is not None and name is not None and paths.diversity(name).exists():
            diversity.load(paths.diversity(name))
        return states
