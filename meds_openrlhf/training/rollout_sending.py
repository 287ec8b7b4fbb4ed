"""Sends the rollouts of each step from the trainer to the rollout log, without waiting for the write."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import ray

from meds_openrlhf.memory.rows import prompt_key
from meds_openrlhf.tracking.rollout_recorder import StepRollouts
from meds_openrlhf.training.experience import StepResult
from meds_openrlhf.training.samples import in_order, responses_of, values_in_order

logger = logging.getLogger(__name__)

STEPS_AHEAD = 4  # unwritten steps, kept in RAM with their tokens, beyond which training waits
PATIENCE_SECONDS = 60.0


class RolloutSender:
    """Sends rollouts to ``recorder``, an actor of `RolloutRecorder`; ``tell`` sends messages to the user.

    If a step cannot be written, its rollouts are lost and training continues; only the first failure is reported.
    """

    def __init__(self, recorder: Any, tell: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._tell = tell
        self._under_way: deque[Any] = deque()
        self._has_failed = False

    def send(self, rollouts: StepRollouts) -> None:
        """Send one step; waits only if `STEPS_AHEAD` earlier steps are still being written."""
        self._settle(STEPS_AHEAD - 1)
        self._under_way.append(self._recorder.record.remote(rollouts))

    def flush(self) -> None:
        """Wait until all sent steps are on disk."""
        self._settle(0)

    def _settle(self, allowed: int) -> None:
        """Collect finished writes, and wait until at most ``allowed`` steps are unwritten."""
        while self._under_way:
            must_wait = len(self._under_way) > allowed
            done, _ = ray.wait([self._under_way[0]], timeout=PATIENCE_SECONDS if must_wait else 0)
            if done:
                self._take(self._under_way.popleft())
            elif must_wait:
                logger.warning("the log of rollouts is %d steps behind; waiting", len(self._under_way))
            else:
                return

    def _take(self, written: Any) -> None:
        try:
            ray.get(written)
        except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
            cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
            if not self._has_failed:
                what = f"{type(cause).__name__}: {cause}"
                self._tell(f"rollouts of a step could not be logged ({what}); training goes on without them")
            self._has_failed = True


def step_rollouts(step: int, result: StepResult) -> StepRollouts:
    """Return a step's data for the log, in the order of the samples."""
    experiences, judged = result.experiences, result.judged
    texts = in_order(experiences, [batch.prompts for batch in experiences])
    keys = {text: prompt_key(text) for text in dict.fromkeys(texts)}  # `texts` repeats a prompt for each of its samples
    responses = in_order(experiences, map(responses_of, experiences))
    return StepRollouts(
        step=step,
        sample=np.arange(len(texts), dtype=np.int32),
        prompt=[keys[text] for text in texts],
        prompt_text=texts,
        ground_truth=[
            None if label is None else str(label) or None
            for label in in_order(experiences, [batch.labels for batch in experiences])
        ],
        tokens=np.concatenate([tokens for tokens, _ in responses]),
        lengths=np.array([len(tokens) for tokens, _ in responses]),
        generated=np.concatenate([generated for _, generated in responses]),
        correct=judged.correct,
        reward=values_in_order(experiences, [batch.info["reward"].float() for batch in experiences]),
        shaped_reward=values_in_order(
            experiences, [batch.info.get("shaped_reward", batch.info["reward"]).float() for batch in experiences]
        ),
        label=judged.label,
        cluster_size=judged.cluster_size,
        truncated=values_in_order(experiences, [batch.truncated.bool() for batch in experiences]),
    )
