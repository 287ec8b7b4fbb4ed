"""Statistics of clusters and prompts, computed for all of them together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.report.error_rows import ErrorRows
from meds_openrlhf.runs.log import NONE, RolloutLog, place_key

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


def visits_of(rows: ErrorRows, log: RolloutLog) -> Visits:
    """Find the visits from the stored rows and from the log, which also has visits without stored rows."""
    of_log = numbers_in(rows, log)
    logged, correct = of_log != NONE, log.correct[of_log != NONE]
    seen = place_key(of_log[logged], log.step[logged] + _EARLY)
    stored = place_key(rows.prompt, rows.step + _EARLY)
    every, visit = np.unique(np.concatenate([seen, stored]), return_inverse=True)
    visit = visit[: len(seen)]
    rollouts, right = (np.bincount(some, minlength=len(every)) for some in (visit, visit[correct]))
    return Visits(every >> 32, (every & 0xFFFFFFFF) - _EARLY, rollouts, right)


def find_clusters(rows: ErrorRows, visits: Visits) -> tuple[Clusters, ErrorRows]:
    """All clusters, and the rows with labels renumbered to match: 0 is a prompt's biggest wrong cluster."""
    member = np.flatnonzero(rows.label >= 0)
    found, cluster = np.unique(place_key(rows.prompt[member], rows.label[member]), return_inverse=True)
    prompt, size = found >> 32, np.bincount(cluster, minlength=len(found))
    right = np.zeros(len(found), bool)
    right[cluster] = rows.right[member]
    first, last = np.full(len(found), np.iinfo(np.int64).max), np.full(len(found), np.iinfo(np.int64).min)
    np.minimum.at(first, cluster, rows.step[member])
    np.maximum.at(last, cluster, rows.step[member])
    of_verdict = np.bincount(2 * rows.prompt + rows.right, minlength=2 * len(rows.prompts))
    share = size / of_verdict[2 * prompt + right]
    rank = np.lexsort((first, -size, right, prompt))
    number = np.arange(len(rank)) - np.searchsorted(prompt[rank], prompt[rank])
    columns = (column[rank] for column in (right, size, share, first, last, visits.after(prompt, last)))
    new = np.empty(len(rank), np.int64)
    new[rank] = number
    renumbered = rows.label.copy()
    renumbered[member] = new[cluster]
    return Clusters(prompt[rank], number, *columns), replace(rows, label=renumbered)


def right_answers(rows: ErrorRows, log: RolloutLog) -> NDArray[np.int64]:
    """The most frequent answer (p,) of each prompt's right rollouts, NONE if there is none."""
    of_log = numbers_in(rows, log)
    right = np.flatnonzero((of_log != NONE) & log.correct & (log.answer != NONE))
    pairs, counts = np.unique(place_key(of_log[right], log.answer[right]), return_counts=True)
    order = np.lexsort((-counts, pairs >> 32))
    prompt, first = np.unique((pairs >> 32)[order], return_index=True)
    answers = np.full(len(rows.prompts), NONE, np.int64)
    answers[prompt] = (pairs & 0xFFFFFFFF)[order][first]
    return answers


def numbers_in(rows: ErrorRows, log: RolloutLog) -> NDArray[np.int64]:
    """For each logged rollout (n,) its prompt's index in ``rows.prompts``, or NONE."""
    known = {key: number for number, key in enumerate(rows.prompts)}
    numbers = np.array([known.get(key, NONE) for key in log.prompts], dtype=np.int64)
    return numbers[log.prompt]
