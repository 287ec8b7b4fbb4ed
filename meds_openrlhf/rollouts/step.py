"""The rollouts of a training step as one value, in the order of the samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.memory.rows import make_rows, remembered_rows
from meds_openrlhf.shaping.method import Step


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """The n rollouts of a step; the ``group`` responses to a prompt are adjacent, so n is a multiple of it.

    Columns of the same name as in `meds_openrlhf.columns` have their meaning, those of the memory and of shaping once
    `replace` has put them there: before, there is no cluster, and the shaped reward is the raw one.
    """

    step: int
    group: int
    prompt: list[str]  # (n) keys
    prompt_text: list[str]
    ground_truth: list[str | None]
    answer: list[str | None]
    token_ids: NDArray[np.int32]  # (t,) of all responses, one behind the other
    tokens: NDArray[np.int64]  # (n,)
    generated: NDArray[np.bool_]  # (t,) the policy's tokens; the others are tool replies
    truncated: NDArray[np.bool_]  # (n,), as all below
    is_extra: NDArray[np.bool_]  # trained on in addition to the batch (meds.penalty.extras)
    correct: NDArray[np.bool_]
    reward: NDArray[np.floating]  # after length penalties, before the memory
    row: NDArray[np.float32]  # (n, d) of the memory, such as layer logits
    has_row: NDArray[np.bool_]
    label: NDArray[np.int32]  # UNASSIGNED where the memory assigned none
    cluster_size: NDArray[np.int32]
    success: NDArray[np.float64]  # of the prompt's earlier visits, as the memory remembers it
    shaped_reward: NDArray[np.floating]

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def sample(self) -> NDArray[np.int32]:
        """The index (n,) of each rollout."""
        return np.arange(len(self), dtype=np.int32)

    def grouped(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values (n,) as (g, N): the N responses to each of g prompts."""
        return values.reshape(-1, self.group)

    def remembered(self, remember: str) -> NDArray[np.intp]:
        """Return the samples (m,) that the memory stores, by verdict (meds.memory.remember)."""
        return np.flatnonzero(remembered_rows(self.correct, remember) & self.has_row)

    def rows(self, samples: NDArray[np.intp]) -> pa.RecordBatch:
        """Return the memory's rows of these samples (m,)."""
        return make_rows(samples, [self.prompt[sample] for sample in samples], self.correct[samples], self.row[samples])

    def for_methods(self, sizes: NDArray[np.integer]) -> Step:
        """Return what methods see, with these cluster sizes (n,)."""
        columns = (self.reward, self.correct, sizes, self.has_row, self.is_extra, self.success)
        return Step(*map(self.grouped, columns))

    def groups(self) -> Iterator[tuple[str, int, int]]:
        """Yield each group's prompt, right responses and all responses."""
        right = self.grouped(self.correct).sum(axis=1).tolist()
        yield from zip(self.prompt[:: self.group], right, repeat(self.group))

    def without_rows(self) -> StepTable:
        """Return the table without what the memory alone needs, for the log."""
        return replace(self, row=np.empty((len(self), 0), np.float32))
