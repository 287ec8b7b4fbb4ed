"""The training half of a run: a step on given rollouts, and checkpoints of policy, data and memory together."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import ray
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from meds_openrlhf.checkpoints import mark_complete, newest_complete, remove_stale, saved_tags
from meds_openrlhf.config import ConfigError
from meds_openrlhf.paths import tag_of
from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.training.control import StepReport
from meds_openrlhf.training.step.batches import arranged
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.experience import ExperienceMaker
from meds_openrlhf.training.step.log import RolloutSender, eval_line
from meds_openrlhf.training.step.rollout import Rollouts

NEW_RUN = {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}


class Trainer(BasePPOTrainer):  # type: ignore[misc]
    """OpenRLHF's updates of policy and critic, with a memory that is part of metrics and checkpoints.

    ``models`` are OpenRLHF's groups of ranks by role. ``lock`` is OpenRLHF's, of engines that also generate while the
    policy trains; None if they do not.
    """

    best_eval_metric_value: float

    def __init__(
        self,
        strategy: Any,
        models: dict[str, Any],
        fleet: EngineFleet,
        tokenizer: Any,
        context: TrainerContext,
        lock: Any = None,
    ) -> None:
        policy, critic, reward, reference = (models.get(role) for role in ("policy", "critic", "reward", "reference"))
        super().__init__(strategy, policy, critic, reward, reference, fleet.usable, tokenizer)
        groups = policy, critic, reward, reference
        self.experience_maker = ExperienceMaker(*groups, self.kl_ctl, strategy, tokenizer, context=context)
        self._context, self._fleet, self._lock = context, fleet, lock
        self._rollouts = RolloutSender(context.recorder, context.tell)

    def step(self, rollouts: Rollouts, step: int) -> dict[str, Any]:
        """Train on a step's rollouts and send the weights to the engines; return the step's metrics."""
        started = time.perf_counter()
        given = rollouts.samples, step, rollouts.tokens, rollouts.extras, rollouts.dropped
        result = self.experience_maker.make_step(*given)
        rollout_stats = self._compute_rollout_stats(result.experiences)
        batches = arranged(result.experiences, self.args, step, self._context.meds.policy.minibatches)
        made = time.perf_counter()
        # What a model gets and does not train on, it would train on later, in place of newer experience.
        trains_policy = step - 1 > self.args.critic.freezing_steps
        models = [*([self.actor_model_group] if trains_policy else []), *filter(None, [self.critic_model_group])]
        ray.get([call for group in models for call in group.async_run_method_batch("append", experience=batches)])
        if self._context.recorder is not None:  # after the ranks have their work: writing uses the node's cores
            self._rollouts.send(result.rollouts.without_rows())
        sent = time.perf_counter()
        status = self.ppo_train(step - 1)
        trained = time.perf_counter()
        self.send_weights()
        times = {
            "timing/generation": rollouts.seconds,
            "timing/make_experience": made - started,
            "timing/send": sent - made,
            "timing/ppo_train": trained - sent,
            "timing/broadcast": time.perf_counter() - trained,
        }
        times["timing/step_total"] = sum(times.values())
        if self.args.algo.dynamic_filtering_enable and rollouts.pass_rate is not None:
            times["dynamic_filtering_pass_rate"] = rollouts.pass_rate
        return {**status, **times, **rollout_stats, **result.metrics}

    def send_weights(self) -> None:
        """Send the policy's weights to all available engines, restarted ones included.

        Raises RunLostError if an engine is lost meanwhile.
        """
        with held(self._lock), self._paused():
            if self._fleet.take_in_restarted():
                if self.args.vllm.sync_with_ray:
                    raise RunLostError("a vLLM engine was lost, and cannot rejoin with vllm.sync_with_ray")
                ray.get(self.actor_model_group.async_run_method("use_engines", engines=list(self._fleet.usable)))
            try:
                self.broadcast_to_vllm()
                self._fleet.note_sync()
            except ray.exceptions.RayError as error:
                if not self._fleet.is_loss(error):
                    raise
                raise RunLostError("a vLLM engine was lost while it received the policy's weights") from error

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Interrupt the responses that engines are at, if these go on with other weights."""
        if self._lock is None or not self.args.train.partial_rollout_enable:
            yield
            return
        self._fleet.keep_those_with_weights()  # of all engines that are asked to pause, one may be lost
        batch_vllm_engine_call(self._fleet.usable, "pause_generation")
        try:
            yield
        finally:
            batch_vllm_engine_call(self._fleet.usable, "resume_generation")

    # ── checkpoints of policy, data and memory together ──

    def resume(self) -> dict[str, Any]:
        """Restore the memory to the moment of the loaded checkpoint, or to empty; return the checkpoint's state.

        Raises ConfigError if the run has a memory and the checkpoint has none.
        """
        state = {**NEW_RUN, **self.init_checkpoint_states()}
        self.restore_best_checkpoint_state(state)
        paths, pool = self._context.paths, self._context.pool
        name = state.get("memory_snapshot")
        if pool is not None:
            if state["global_step"] > 0 and name is None:
                hint = "the checkpoint was saved without a memory. Set false, or begin a new run."
                raise ConfigError("meds.enabled", True, hint)
            restored = pool.restore(name)
            if state["global_step"] > 0 and not restored.visits:
                self._context.tell(
                    f"the memory of {name} was written by a version that counted no successes: they begin empty"
                )
            diversity = self.experience_maker.diversity
            if diversity is not None and name is not None and paths.diversity(name).exists():
                diversity.load(paths.diversity(name))
        if state["global_step"] > 0:
            self.send_weights()
        return state

    def finish_step(self, step: int, metrics: dict[str, Any], state: dict[str, Any]) -> bool:
        """Log a step, save a checkpoint if it is due, and return whether the run has to stop."""
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, Real)}
        # Report before saving: after a crash a surplus line can be removed, but a missing line cannot be restored.
        must_stop: bool = ray.get(self._context.control.report.remote(StepReport(step, numbers)))
        if must_stop or is_due(step, self.args.ckpt.save_steps):
            self.save(step, state)
        return must_stop

    def finish_evaluation(self, evaluated: int, metrics: dict[str, float], step: int, state: dict[str, Any]) -> bool:
        """Log an evaluation of the step ``evaluated``, and keep the policy if it is the best so far.

        An asynchronous run has advanced to ``step`` by then, which is what it saves. Returns whether the run has to
        stop: evaluations take long.
        """
        report, line = StepReport(evaluated, metrics), eval_line(evaluated, metrics)
        must_stop: bool = ray.get(self._context.control.report_evaluation.remote(report, line))
        key = self._detect_eval_metric_key(metrics)
        if key in metrics:
            self._latest_eval_metric_value = value = metrics[key]
            if value > self.best_eval_metric_value:
                self.best_eval_metric_value = value
                self._save(tag_of(evaluated, best=True), step, {**state, "checkpoint_metric_key": key})
        if must_stop:
            self.save(step, state)
        return must_stop

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save a checkpoint of the step, unless there is one."""
        newest = newest_complete(self._context.paths)
        if newest is None or newest.tag != tag_of(step):
            self._save(tag_of(step), step, state)

    def _save(self, tag: str, step: int, state: dict[str, Any]) -> None:
        """Save memory and diversity, then the models, and then mark the checkpoint complete.

        With ``ckpt.disable_ds`` there is nothing to resume from, and the ranks write at most ``ckpt.save_hf``'s model.
        """
        paths, is_whole = self._context.paths, not self.args.ckpt.disable_ds
        pool = self._context.pool if is_whole else None
        self._rollouts.flush()
        if is_whole and (diversity := self.experience_maker.diversity):
            diversity.save(paths.diversity(tag))
        if pool is not None:
            pool.snapshot(tag)
        value, key = self._latest_eval_metric_value, state.get("checkpoint_metric_key") or self.best_eval_metric_key
        states = {
            **state,
            "global_step": step,
            "best_eval_metric_key": self.best_eval_metric_key,
            "best_eval_metric_value": self.best_eval_metric_value,
            "latest_eval_metric_value": value,
            **({} if pool is None else {"memory_snapshot": tag}),
        }
        named = {"tag": tag, "metric_value": value, "metric_key": key or None}
        calls = self.actor_model_group.async_run_method("save_checkpoint", client_states=states, **named)
        if self.critic_model_group is not None:
            calls += self.critic_model_group.async_run_method("save_checkpoint", **named)
        try:
            ray.get(calls)
        except ray.exceptions.RayTaskError as error:
            if "inline_container" not in str(error):  # how torch.save names a file that it could not write
                raise
            problem = f"{paths.checkpoints}: the checkpoint {tag} could not be written; is the disk full?"
            raise OSError(errno.ENOSPC, problem) from error
        if not is_whole:
            return
        mark_complete(paths, tag, step)
        # On a shared disk, files from another node may appear with a delay.
        saved = saved_tags(paths) | {tag}
        remove_stale(paths, saved)
        if pool is not None:
            pool.prune_snapshots(saved)

    def flush(self) -> None:
        """Wait until all rollouts are on disk."""
        self._rollouts.flush()


def is_due(step: int, every: float) -> bool:
    """Whether ``step`` is a multiple of ``every``; -1 is never."""
    return every > 0 and step % every == 0


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Hold OpenRLHF's lock of the engines; without one there is nothing to hold."""
    if lock is None:
        yield
        return
    ray.get(lock.acquire.remote())
    try:
        yield
    finally:
        ray.get(lock.release.remote())
