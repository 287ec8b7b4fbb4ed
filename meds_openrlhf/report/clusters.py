"""Statistics of clusters and prompts, computed for all of them together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.report.error_rows import ErrorRows
from meds_openrlhf.report.rollout_rows import NONE, RolloutRows, place_key

_EARLY = 1 << 31  # added to steps, which are negative before a branch


@dataclass(frozen=True)
class Clusters:
    """All c clusters of a run, ordered by prompt, wrong before right, bigger before smaller.

    ``share`` is relative to the prompt's rows of that verdict, including noise.
    ``visits_since`` counts the prompt's visits after ``last``; 0 means that the cluster is alive: it got a member at
    the prompt's last visit.
    """

    prompt: NDArray[np.int64]  # (c,)
    label: NDArray[np.int64]  # (c,): the cluster's number within the prompt
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
    """All v visits of the atlas's prompts, in the order of prompt and step.

    ``rollouts`` and ``correct`` count logged rollouts; both are 0 if the log lacks that visit.
    """

    prompt: NDArray[np.int64]  # (v,)
    step: NDArray[np.int64]  # (v,)
    rollouts: NDArray[np.int64]  # (v,)
    correct: NDArray[np.int64]  # (v,)

    def after(self, prompt: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of visits (m,) that each ``prompt`` (m,) has after its ``step`` (m,)."""
        keys = place_key(self.prompt, self.step + _EARLY)
        wanted = place_key(prompt, step + _EARLY)
        ends = np.searchsorted(self.prompt, prompt, side="right")
        after: NDArray[np.int64] = ends - np.searchsorted(keys, wanted, side="right")
        return after


def visits_of(rows: ErrorRows, rollouts: RolloutRows) -> Visits:
    """Find the visits from the stored rows and from the log, which also has visits without stored rows."""
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
    """All clusters, and the rows with labels renumbered to match: 0 is a prompt's biggest wrong cluster."""
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
    """The most frequent answer (p,) of each prompt's right rollouts, NONE if there is none."""
    of_log = _numbers_in(rows, rollouts)
    right = np.flatnonzero((of_log != NONE) & rollouts.correct & (rollouts.answer != NONE))
    pairs, counts = np.unique(place_key(of_log[right], rollouts.answer[right]), return_counts=True)
    order = np.lexsort((-counts, pairs >> 32))
    prompt, first = np.unique((pairs >> 32)[order], return_index=True)
    answers = np.full(len(rows.prompts), NONE, np.int64)
    answers[prompt] = (pairs & 0xFFFFFFFF)[order][first]
    return answers


def _numbers_in(rows: ErrorRows, rollouts: RolloutRows) -> NDArray[np.int64]:
    """For each logged rollout (n,) its prompt's index in ``rows.prompts``, or NONE."""
    known = {key: number for number, key in enumerate(rows.prompts)}
    numbers = np.array([known.get(key, NONE) for key in rollouts.prompts] or [NONE], dtype=np.int64)
    return numbers[rollouts.prompt]


def _group_sizes(rows: ErrorRows, prompt: NDArray[np.int64], right: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The number of rows (c,) of each prompt and verdict, including noise."""
    counts = np.bincount(2 * rows.prompt + rows.right, minlength=2 * len(rows.prompts))
    sizes: NDArray[np.int64] = counts[2 * prompt + right]
    return sizes
