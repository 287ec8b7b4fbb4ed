"""Record the texts, answers and rewards of a step's rollouts, and its biggest clusters.

This takes a while for thousands of responses, so `RolloutRecorder` runs as a Ray actor: the trainer sends token ids and
continues.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.cluster_log import cluster_line
from meds_openrlhf.tracking.response_texts import ResponseReader, ResponseText
from meds_openrlhf.tracking.rollout_log import ROLLOUT_SCHEMA, cut_rollouts, sample_texts, write_rollouts
from meds_openrlhf.tracking.step_log import StepLog


@dataclass(frozen=True)
class StepRollouts:
    """The n rollouts of a step, ordered by ``sample``.

    ``tokens`` (t,) are the responses' concatenated token ids, ``lengths`` (n,) their numbers of tokens; ``generated``
    (t,) marks the policy's tokens, the others are tool replies. ``label`` is UNASSIGNED for rollouts that the memory
    did not assign.
    """

    step: int
    sample: NDArray[np.int32]  # (n,)
    prompt: list[str]  # keys
    prompt_text: list[str]
    ground_truth: list[str | None]
    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]
    generated: NDArray[np.bool_]
    correct: NDArray[np.bool_]  # (n,), as all below
    reward: NDArray[np.float32]
    shaped_reward: NDArray[np.float32]
    label: NDArray[np.int32]
    cluster_size: NDArray[np.int32]
    truncated: NDArray[np.bool_]


class RolloutRecorder:
    """Writes a run's ``rollouts/`` and ``clusters.jsonl``, step by step.

    ``keep`` selects the rollouts whose texts are kept: "all", "sampled", or "none" (no ``rollouts/`` and no texts).
    """

    def __init__(self, paths: RunPaths, reader: ResponseReader, keep: str) -> None:
        self._paths = paths
        self._reader = reader
        self._keep = keep
        self._clusters = StepLog(paths.clusters)

    def record(self, rollouts: StepRollouts) -> int:
        """Write a step and return its number. Raises OSError if it cannot be written."""
        table = self.table(rollouts)
        if self._keep != "none":
            write_rollouts(self._paths, sample_texts(table) if self._keep == "sampled" else table)
        self._clusters.append(rollouts.step, cluster_line(table))
        return rollouts.step

    def table(self, rollouts: StepRollouts) -> pa.Table:
        """Rows of `ROLLOUT_SCHEMA`; without texts if ``keep`` is "none"."""
        n = len(rollouts.sample)
        responses: list[ResponseText | None] = [None] * n
        if self._keep != "none":
            responses = [*self._reader.read(rollouts.tokens, rollouts.lengths, rollouts.generated)]
        prompts = [""] * n if self._keep == "none" else rollouts.prompt_text
        columns = {
            "step": np.full(n, rollouts.step, np.int32),
            "sample": rollouts.sample,
            "prompt": rollouts.prompt,
            "prompt_text": pa.array(prompts).dictionary_encode(),
            "ground_truth": pa.array(rollouts.ground_truth, pa.string()).dictionary_encode(),
            "response": [response and response.text for response in responses],
            "answer": [response and response.answer for response in responses],
            "answer_start": pa.array([response and response.answer_start for response in responses], pa.int32()),
            "correct": rollouts.correct,
            "reward": rollouts.reward,
            "shaped_reward": rollouts.shaped_reward,
            "penalty": rollouts.reward - rollouts.shaped_reward,
            "label": pa.array(rollouts.label, pa.int32(), mask=rollouts.label == UNASSIGNED),
            "cluster_size": rollouts.cluster_size,
            "tokens": rollouts.lengths.astype(np.int32),
            "truncated": rollouts.truncated,
        }
        return pa.table([columns[name] for name in ROLLOUT_SCHEMA.names], schema=ROLLOUT_SCHEMA)


def forget_after(paths: RunPaths, step: int) -> None:
    """Truncate both logs after ``step``; the resumed run repeats the later steps."""
    StepLog(paths.clusters).cut_after(step)
    cut_rollouts(paths, step)
