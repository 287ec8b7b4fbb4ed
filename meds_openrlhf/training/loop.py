"""The loop of a run, synchronous and asynchronous: rollouts, step, weights, checkpoint, evaluation, stop.

`SynchronousRun` and `AsynchronousRun` are Ray actors with the same methods. Importing this module imports OpenRLHF.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray
import transformers
from openrlhf.trainer.ppo_trainer import prepare_datasets
from openrlhf.trainer.ppo_trainer_async import VLLMLock
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.utils.utils import get_tokenizer
from ray.util.queue import Queue

from meds_openrlhf.paths import tag_of
from meds_openrlhf.runtime.ray_connection import this_node
from meds_openrlhf.step_log import StepLog
from meds_openrlhf.training.control import Stopped
from meds_openrlhf.training.step.context import TrainerContext
from meds_openrlhf.training.step.engine_fleet import EngineFleet
from meds_openrlhf.training.step.rollout import RolloutGenerator
from meds_openrlhf.training.step.trainer import Trainer, held, is_due


class SynchronousRun:
    """Engines wait while the policy trains, and the policy while they generate."""

    def __init__(self, strategy: Any, models: dict[str, Any], engines: list[Any], context: TrainerContext) -> None:
        self._args, self._context = strategy.args, context
        data, fleet = _data_of(strategy), EngineFleet(engines, context.tell)
        self._max_steps = data.max_steps
        self._trainer = Trainer(strategy, models, fleet, data.tokenizer, context)
        self._rollouts = RolloutGenerator(data.generator, fleet, context, self._trainer.send_weights)

    def get_max_steps(self) -> int:
        """Return OpenRLHF's number of steps, for its schedulers."""
        return self._max_steps

    def fit(self) -> None:
        """Train to the end, or until the driver asks for a stop."""
        state = self._trainer.resume()
        step, must_stop = state["global_step"], False
        if step:
            self._rollouts.resume(state)
            if _last_evaluated(self._context) < step:  # it was saved before it was evaluated
                must_stop = self._evaluate_if_due(step, state)
        while not must_stop and (rollouts := self._rollouts.generate()) is not None:
            step += 1
            metrics = self._trainer.step(rollouts, step)
            must_stop = self._trainer.finish_step(step, metrics, rollouts.state)
            must_stop = must_stop or self._evaluate_if_due(step, rollouts.state)
        _end(self._trainer, self._context, step, must_stop)

    def _evaluate_if_due(self, step: int, state: dict[str, Any]) -> bool:
        """Evaluate the policy after a step if it is time for that; return whether the run has to stop."""
        if not self._rollouts.evaluates or not is_due(step, self._args.eval.steps):
            return False
        return self._trainer.finish_evaluation(step, self._rollouts.evaluate(), step, state)


class AsynchronousRun:
    """Engines generate the next steps' rollouts while the policy trains: two actors, and a queue between them."""

    def __init__(self, strategy: Any, models: dict[str, Any], engines: list[Any], context: TrainerContext) -> None:
        size = strategy.args.train.async_queue_size
        queue, slots, lock = Queue(maxsize=size), Queue(maxsize=size), VLLMLock.remote()
        for _ in range(size):
            slots.put(0)
        near = ray.remote(num_cpus=0, scheduling_strategy=this_node(soft=True))
        self._generating = near(GeneratingHalf).remote(strategy, engines, context, queue, slots, lock)
        self._training = near(TrainingHalf).remote(strategy, models, engines, context, queue, slots, lock)

    def get_max_steps(self) -> int:
        """Return OpenRLHF's number of steps, for its schedulers."""
        return ray.get(self._generating.get_max_steps.remote())  # type: ignore[no-any-return]

    def fit(self) -> None:
        """Train to the end, or until the driver asks for a stop."""
        state = ray.get(self._training.resume.remote())
        ray.get([self._generating.fit.remote(state), self._training.fit.remote(state)])


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of the policy after a ``step``, in the queue of rollouts."""

    step: int
    metrics: dict[str, float]


class GeneratingHalf:
    """Generates rollouts for each free slot of the queue, which has the step that training was at; None ends it."""

    def __init__(
        self, strategy: Any, engines: list[Any], context: TrainerContext, queue: Queue, slots: Queue, lock: Any
    ) -> None:
        self._args, self._queue, self._slots, self._lock = strategy.args, queue, slots, lock
        self._context = context
        data, fleet = _data_of(strategy), EngineFleet(engines, context.tell)
        self._max_steps = data.max_steps
        self._rollouts = RolloutGenerator(data.generator, fleet, context, sync_weights=None)

    def get_max_steps(self) -> int:
        """Return OpenRLHF's number of steps, for its schedulers."""
        return self._max_steps

    def fit(self, state: dict[str, Any]) -> None:
        """Generate to the end, and evaluate where it is due."""
        if state["global_step"]:
            self._rollouts.resume(state)
        has_evaluated, evaluated = False, _last_evaluated(self._context)
        is_partial = self._args.train.partial_rollout_enable  # responses go on with new weights, without a lock
        while self._rollouts.has_data:
            step = self._slots.get(block=True)
            wanted = self._rollouts.evaluates and is_due(step, self._args.eval.steps) and step not in (0, evaluated)
            if wanted and not has_evaluated:  # the next slot has the same weights
                has_evaluated, evaluated = True, step
                with held(self._lock):
                    metrics = self._rollouts.evaluate()
                self._queue.put(Evaluation(step, metrics), block=True)
                continue
            has_evaluated = False
            rollouts = None
            while rollouts is None and not self._rollouts.is_over:
                with held(None if is_partial else self._lock):  # new weights may come between two batches
                    rollouts = self._rollouts.generate_batch()
            if rollouts is None:
                break
            self._queue.put(rollouts, block=True)
        self._queue.put(None, block=True)


class TrainingHalf:
    """Trains on the rollouts in the queue."""

    def __init__(
        self,
        strategy: Any,
        models: dict[str, Any],
        engines: list[Any],
        context: TrainerContext,
        queue: Queue,
        slots: Queue,
        lock: Any,
    ) -> None:
        transformers.set_seed(strategy.args.train.seed)  # for a user's feature
        self._context, self._queue, self._slots = context, queue, slots
        fleet = EngineFleet(engines, context.tell)
        self._trainer = Trainer(strategy, models, fleet, _tokenizer_of(strategy), context, lock)

    def resume(self) -> dict[str, Any]:
        """Restore what the checkpoint has; return its state."""
        return self._trainer.resume()

    def fit(self, state: dict[str, Any]) -> None:
        """Train to the end, or until the driver asks for a stop."""
        step, must_stop, started = state["global_step"], False, time.perf_counter()
        while not must_stop and (item := self._queue.get(block=True)) is not None:
            self._slots.put(step, block=True)
            if isinstance(item, Evaluation):
                must_stop = self._trainer.finish_evaluation(item.step, item.metrics, step, state)
                started = time.perf_counter()
            else:
                step, state = step + 1, item.state
                metrics = self._trainer.step(item, step)
                metrics["timing/step_total"] = time.perf_counter() - started  # with waiting; its parts overlap
                started = time.perf_counter()
                must_stop = self._trainer.finish_step(step, metrics, state)
        _end(self._trainer, self._context, step, must_stop)


@dataclass(frozen=True)
class _Data:
    """A run's prompts as OpenRLHF loads them, in an order that the seed determines."""

    tokenizer: Any
    generator: SamplesGenerator
    max_steps: int


def _data_of(strategy: Any) -> _Data:
    transformers.set_seed(strategy.args.train.seed)
    tokenizer = _tokenizer_of(strategy)
    prompts, evaluation, max_steps = prepare_datasets(strategy, tokenizer)
    return _Data(tokenizer, SamplesGenerator(strategy, prompts, evaluation, tokenizer, []), max_steps)


def _tokenizer_of(strategy: Any) -> Any:
    args = strategy.args
    return get_tokenizer(
        args.actor.model_name_or_path, None, "left", strategy, use_fast=not args.data.disable_fast_tokenizer
    )


def _last_evaluated(context: TrainerContext) -> int:
    """The last step whose evaluation is logged; 0 without one."""
    lines = StepLog(context.paths.evaluations).read()
    return int(lines[-1]["step"]) if lines else 0


def _end(trainer: Trainer, context: TrainerContext, step: int, was_stopped: bool) -> None:
    """Write what is left, and tell the driver of a stop on request if there was one."""
    trainer.flush()
    if was_stopped:
        tag = None if trainer.args.ckpt.disable_ds else tag_of(step)
        context.tell(Stopped(step, tag))
