"""Facts of every cluster and of every prompt, computed for all of them at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.clustering import NOISE
from meds_openrlhf.report.error_rows import OUTSIDE, ErrorRows
from meds_openrlhf.report.rollout_rows import NONE, RolloutRows, place_key

_EARLY = 1 << 31  # added to steps, which are below 0 before a branch


@dataclass(frozen=True)
class Clusters:
    """All c clusters of a run: prompt by prompt, the wrong ones first, the bigger ones first.

    ``share`` is of the prompt's rows of that verdict, noise among them, but for those that the window leaves out.
    ``visits_since`` counts the prompt's visits after
    ``last``, so 0 means that the cluster is alive: it got a member when the prompt was last seen.
    """

    prompt: NDArray[np.int64]  # (c,)
    label: NDArray[np.int64]  # (c,): its number within the prompt
    right: NDArray[np.bool_]  # (c,)
    size: NDArray[np.int64]  # (c,)
    share: NDArray[np.float64]  # (c,)
    first: NDArray[np.int64]  # (c,): steps
    last: NDArray[np.int64]  # (c,)
    visits_since: NDArray[np.int64]  # (c,)

    def __len__(self) -> int:
        return len(self.prompt)


@dataclass(frozen=True)
class Visits:
    """Every time that a prompt of the atlas was seen, in the order of prompt and step.

    ``rollouts`` and ``correct`` count those of the log; both are 0 where it lacks that visit.
    """

    prompt: NDArray[np.int64]  # (v,)
    step: NDArray[np.int64]  # (v,)
    rollouts: NDArray[np.int64]  # (v,)
    correct: NDArray[np.int64]  # (v,)

    def after(self, prompt: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many visits each of these prompts (m,) has after the step (m,)."""
        own = place_key(self.prompt, self.step + _EARLY)
        wanted = place_key(prompt, step + _EARLY)
        ends = np.searchsorted(self.prompt, prompt, side="right")
        after: NDArray[np.int64] = ends - np.searchsorted(own, wanted, side="right")
        return after


def visits_of(rows: ErrorRows, rollouts: RolloutRows) -> Visits:
    """From the stored rows and from the log, which also knows of visits that stored none."""
    of_log = _numbers_in(rows, rollouts)
    logged = of_log != NONE
    stored = place_key(rows.prompt, rows.step + _EARLY)
    seen = place_key(of_log[logged], rollouts.step[logged] + _EARLY)
    key, counts = np.unique(seen, return_counts=True)
    right, right_counts = np.unique(seen[rollouts.correct[logged]], return_counts=True)
    every = np.union1d(key, stored)
    totals, correct = np.zeros(len(every), np.int64), np.zeros(len(every), np.int64)
    totals[np.searchsorted(every, key)] = counts
    correct[np.searchsorted(every, right)] = right_counts
    return Visits(every >> 32, (every & 0xFFFFFFFF) - _EARLY, totals, correct)


def find_clusters(rows: ErrorRows, visits: Visits) -> tuple[Clusters, ErrorRows]:
    """Facts of all clusters, and the rows with labels numbered as the facts are: 0 is a prompt's biggest error."""
    member = np.flatnonzero(rows.label >= 0)
    prompt, label = rows.prompt[member], rows.label[member]
    _, of_member = np.unique(place_key(prompt, label), return_inverse=True)
    order = np.argsort(of_member, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(of_member[order]) > 0]) if len(order) else order
    steps = rows.step[member][order]
    size = np.diff(np.r_[starts, len(order)])
    first = np.minimum.reduceat(steps, starts) if len(starts) else steps
    last = np.maximum.reduceat(steps, starts) if len(starts) else steps
    of_prompt, right = prompt[order][starts], rows.right[member][order][starts]
    rank = np.lexsort((first, -size, right, of_prompt))
    number = np.arange(len(rank)) - np.searchsorted(of_prompt[rank], of_prompt[rank])
    facts = Clusters(
        of_prompt[rank], number, right[rank], size[rank], size[rank] / _group_sizes(rows, of_prompt, right)[rank],
        first[rank], last[rank], visits.after(of_prompt[rank], last[rank]),
    )  # fmt: skip
    new = np.empty(len(rank), np.int64)
    new[rank] = number
    renumbered = rows.label.copy()
    renumbered[member] = new[of_member]
    return facts, replace(rows, label=renumbered)


def right_answers(rows: ErrorRows, rollouts: RolloutRows) -> NDArray[np.int64]:
    """For each prompt the answer (p,) that most of its right rollouts give, NONE where none is known."""
    of_log = _numbers_in(rows, rollouts)
    right = np.flatnonzero((of_log != NONE) & rollouts.correct & (rollouts.answer != NONE))
    pairs, counts = np.unique(place_key(of_log[right], rollouts.answer[right]), return_counts=True)
    order = np.lexsort((-counts, pairs >> 32))
    prompt, first = np.unique((pairs >> 32)[order], return_index=True)
    answers = np.full(len(rows.prompts), NONE, np.int64)
    answers[prompt] = (pairs & 0xFFFFFFFF)[order][first]
    return answers


def noise_of(rows: ErrorRows) -> tuple[int, int]:
    """How many rows are in no cluster, and how many the window leaves out."""
    return int((rows.label == NOISE).sum()), int((rows.label == OUTSIDE).sum())


def _numbers_in(rows: ErrorRows, rollouts: RolloutRows) -> NDArray[np.int64]:
    """The prompt's number among the rows' (n,) for each rollout of the log, NONE for others."""
    known = {key: number for number, key in enumerate(rows.prompts)}
    numbers = np.array([known.get(key, NONE) for key in rollouts.prompts] or [NONE], dtype=np.int64)
    return numbers[rollouts.prompt]


def _group_sizes(rows: ErrorRows, prompt: NDArray[np.int64], right: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The rows of each prompt and verdict (c,): in a cluster or noise, but not outside of the window."""
    inside = rows.label != OUTSIDE
    counts = np.bincount(2 * rows.prompt[inside] + rows.right[inside], minlength=2 * len(rows.prompts))
    sizes: NDArray[np.int64] = counts[2 * prompt + right]
    return sizes
