"""Writes down what the policy wrote: texts, answers and rewards of a step's rollouts, and its biggest clusters.

All of it takes a while for thousands of responses, so `RolloutRecorder` is made an actor beside the driver: the trainer
hands over token ids and goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.features.answer import AnswerOpenings
from meds_openrlhf.memory.assignment import UNASSIGNED
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.cluster_log import cluster_line
from meds_openrlhf.tracking.rollout_log import ROLLOUT_SCHEMA, cut_rollouts, sample_texts, write_rollouts
from meds_openrlhf.tracking.step_log import StepLog

Decode = Callable[[list[list[int]]], list[str]]


@dataclass(frozen=True)
class StepRollouts:
    """The n rollouts of one step, in any order.

    ``tokens`` (t,) are the responses' token ids, one after the other, ``lengths`` (n,) how many each has; ``generated``
    (t,) says which are the policy's own, the others being tools' replies. ``label`` is UNASSIGNED where the memory said
    nothing.
    """

    step: int
    sample: NDArray[np.int32]  # (n,)
    prompt: list[str]  # keys
    prompt_text: list[str]
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

    ``keep``: whose texts are kept, of "all", "sampled" or "none" (which writes no ``rollouts/``). ``decode``
    makes texts of token ids.
    """

    def __init__(self, paths: RunPaths, decode: Decode, answers: AnswerOpenings, keep: str) -> None:
        self._paths = paths
        self._decode = decode
        self._answers = answers
        self._keep = keep
        self._clusters = StepLog(paths.clusters)

    def record(self, rollouts: StepRollouts) -> int:
        """Write one step down; its number. Raises OSError where the disk refuses."""
        table = self.table(rollouts)
        self._clusters.append(rollouts.step, cluster_line(table))
        if self._keep != "none":
            write_rollouts(self._paths, sample_texts(table) if self._keep == "sampled" else table)
        return rollouts.step

    def table(self, rollouts: StepRollouts) -> pa.Table:
        """Rows of `ROLLOUT_SCHEMA`, in the order of ``sample``."""
        responses, answers, starts = self._read(rollouts)
        n = len(rollouts.sample)
        columns = {
            "step": np.full(n, rollouts.step, np.int32),
            "sample": rollouts.sample,
            "prompt": rollouts.prompt,
            "prompt_text": pa.array(rollouts.prompt_text).dictionary_encode(),
            "response": responses,
            "answer": answers,
            "answer_start": pa.array(starts, pa.int32()),
            "correct": rollouts.correct,
            "reward": rollouts.reward,
            "shaped_reward": rollouts.shaped_reward,
            "penalty": rollouts.reward - rollouts.shaped_reward,
            "label": pa.array(rollouts.label, pa.int32(), mask=rollouts.label == UNASSIGNED),
            "cluster_size": rollouts.cluster_size,
            "tokens": rollouts.lengths.astype(np.int32),
            "truncated": rollouts.truncated,
        }
        return pa.table([columns[name] for name in ROLLOUT_SCHEMA.names], schema=ROLLOUT_SCHEMA).sort_by("sample")

    def _read(self, rollouts: StepRollouts) -> tuple[list[str], list[str | None], list[int | None]]:
        """Of every response: its text, its answer, and the characters before the answer."""
        pieces, owner, own = _pieces(rollouts)
        texts = self._decode(pieces)
        responses = [""] * len(rollouts.sample)
        answers: list[str | None] = [None] * len(responses)
        starts: list[int | None] = [None] * len(responses)
        for text, rollout, is_own in zip(texts, owner, own):
            before = len(responses[rollout])
            responses[rollout] += text
            encoded = text.encode()
            if is_own and self._answers.end_of_last(encoded):  # a later opening replaces an earlier answer
                found = self._answers.answer_after(encoded)
                answers[rollout], starts[rollout] = None, None
                if found is not None:
                    start = len(encoded[: found[0]].decode(errors="replace"))
                    answers[rollout] = found[1]
                    starts[rollout] = before + text.index(found[1], start)
        return responses, answers, starts


def decoder(tokenizer: Any) -> Decode:
    """What makes texts of token ids with a Hugging Face ``tokenizer``; that of a fast one needs no transformers."""
    decode = tokenizer.backend_tokenizer.decode_batch if tokenizer.is_fast else tokenizer.batch_decode
    return functools.partial(decode, skip_special_tokens=True)


def forget_after(paths: RunPaths, step: int) -> None:
    """Cut both logs back to ``step``: what came later is going to be repeated."""
    StepLog(paths.clusters).cut_after(step)
    cut_rollouts(paths, step)


def _pieces(rollouts: StepRollouts) -> tuple[list[list[int]], list[int], list[bool]]:
    """Runs of tokens of one rollout that are all its own or all not; whose they are, and which of both."""
    owner = np.repeat(np.arange(len(rollouts.lengths)), rollouts.lengths)
    changes = np.flatnonzero((np.diff(owner) != 0) | (np.diff(rollouts.generated) != 0)) + 1
    starts = np.concatenate([[0], changes]) if len(owner) else np.empty(0, np.int64)
    pieces = [piece.tolist() for piece in np.split(rollouts.tokens, changes)] if len(owner) else []
    return pieces, owner[starts].tolist(), rollouts.generated[starts].tolist()
