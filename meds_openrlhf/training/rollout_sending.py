"""From the trainer to the log of rollouts: what a step generated, handed over without waiting for it to be written."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from openrlhf.trainer.ppo_utils.experience import Experience

from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.tracking.rollout_recorder import StepRollouts

logger = logging.getLogger(__name__)

STEPS_AHEAD = 4  # that may wait to be written, each as large as its tokens; then training waits
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Judged:
    """What was found of a step's n rollouts, in the order of the samples' index: verdicts, clusters and their sizes."""

    correct: NDArray[np.bool_]
    label: NDArray[np.int32]  # UNASSIGNED where the memory said nothing
    cluster_size: NDArray[np.int32]


def judged_without_memory(experiences: Sequence[Experience], threshold: float) -> Judged:
    """Verdicts from scores (rewards where there are none), and no clusters."""
    sample = np.concatenate([one.index for one in experiences])
    correct = np.zeros(len(sample), bool)
    scores = [one.info["reward"] if one.scores is None else one.scores for one in experiences]
    correct[sample] = _values(scores) >= threshold
    return Judged(correct, np.full(len(sample), UNASSIGNED, np.int32), np.zeros(len(sample), np.int32))


class RolloutSender:
    """Sends rollouts to ``recorder``, an actor of `RolloutRecorder`; ``tell`` is for what the user should know.

    A step that could not be written is said once and lost; training goes on.
    """

    def __init__(self, recorder: Any, tell: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._tell = tell
        self._under_way: deque[Any] = deque()
        self._has_failed = False

    def send(self, rollouts: StepRollouts) -> None:
        """Hand over one step; waits only where several before it are still being written."""
        self._settle(STEPS_AHEAD - 1)
        self._under_way.append(self._recorder.record.remote(rollouts))

    def flush(self) -> None:
        """Until everything handed over is on the disk."""
        self._settle(0)

    def _settle(self, allowed: int) -> None:
        """Take note of the steps that are written, and wait until at most ``allowed`` are not."""
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


def step_rollouts(
    step: int,
    experiences: Sequence[Experience],
    key_of: Callable[[str], str],
    judged: Judged,
) -> StepRollouts:
    """What the log keeps of a step; ``key_of`` gives a prompt's key."""
    sample = np.array([one for experience in experiences for one in experience.index], np.int32)
    texts = [prompt for experience in experiences for prompt in experience.prompts]
    keys = {text: key_of(text) for text in dict.fromkeys(texts)}  # a prompt stands there once for each of its samples
    shaped = _values([one.info.get("shaped_reward", one.info["reward"]) for one in experiences])
    tokens, lengths, generated = _responses(experiences)
    return StepRollouts(
        step=step,
        sample=sample,
        prompt=[keys[text] for text in texts],
        prompt_text=texts,
        tokens=tokens,
        lengths=lengths,
        generated=generated,
        correct=judged.correct[sample],
        reward=_values([one.info["reward"] for one in experiences]),
        shaped_reward=shaped,
        label=judged.label[sample],
        cluster_size=judged.cluster_size[sample],
        truncated=np.concatenate([one.truncated.bool().numpy() for one in experiences]),
    )


def _values(tensors: Sequence[Any]) -> NDArray[np.float32]:
    return np.concatenate([tensor.float().numpy() for tensor in tensors])


def _responses(experiences: Sequence[Experience]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_]]:
    """Tokens (t,) from each response's first generated one on, their number per response (n,), and which are generated.

    ``action_mask[t]`` speaks of the token at ``t + 1``.
    """
    tokens, lengths, generated = [], [], []
    for one in experiences:
        present = one.attention_mask[:, 1:].numpy() != 0
        own = (one.action_mask.numpy() != 0) & present
        starts = np.where(own.any(axis=1), own.argmax(axis=1), own.shape[1])
        ends = own.shape[1] - present[:, ::-1].argmax(axis=1)
        ids = one.sequences[:, 1:].numpy()
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist())):
            tokens.append(ids[row, start:end].astype(np.int32))
            lengths.append(max(end - start, 0))
            generated.append(own[row, start:end])
    return np.concatenate(tokens), np.array(lengths), np.concatenate(generated)
