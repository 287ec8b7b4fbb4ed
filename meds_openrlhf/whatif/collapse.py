"""Whether a run collapses: what its policy repeats, and whether it solves fewer prompts in several attempts by now.

All quantities are of the training rollouts. Responses without a final answer repeat nothing and are left out of the
shares of answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from meds_openrlhf.stats.estimates import ENDS, ks_up_to, pass_at_k
from meds_openrlhf.whatif.visits import Visits

WINDOW = 7  # steps of the centered mean, and at the end of the run
REDRAWS = 100  # of the first visit's wrong answers
FEW = 6  # prompts: of fewer, halves are too small for an interval
RESAMPLES, AT_ONCE = 2_000, 100  # of prompts, and how many are in memory

Interval = tuple[float, float]


@dataclass(frozen=True)
class Recurrence:
    """How often wrong answers come back, of prompts that had some at their first visit.

    ``share``: of the wrong answers of later visits, those that were given at an earlier one. ``null``: the same share,
    expected if every visit draws as many wrong answers as it has, with replacement, from the prompt's first; with its
    interval over redraws.
    """

    share: float
    null: float
    interval: Interval


@dataclass(frozen=True)
class Peak:
    """Where pass@k was best, and how far it fell.

    ``k`` is the usual size of a group; ``step`` the middle of the `WINDOW` steps with the largest mean; ``fall`` what
    is lost since, in the last `WINDOW` steps, with its interval over prompts; ``pass1_rise`` what pass@1 gained.
    """

    k: int
    step: int
    last: int
    steps: int  # their number
    fall: float
    interval: Interval
    pass1_rise: float

    @property
    def is_told(self) -> bool:
        """Whether there are enough steps for a window before that of the end."""
        return self.steps >= 2 * WINDOW

    @property
    def collapses(self) -> bool | None:
        """Whether the interval is above 0; None if it is not told."""
        return self.interval[0] > 1e-9 if self.is_told else None


def recurrence_of(visits: Visits) -> Recurrence | None:
    """Return how often wrong answers come back; None if no prompt has wrong answers at its first visit and later."""
    wrong = np.flatnonzero(visits.wrong_answer)
    visit = visits.visit[wrong]
    frame = pd.DataFrame({"prompt": visits.prompt[visit], "visit": visit, "answer": visits.answer[wrong]})
    later = visits.number[visit] > 0
    has_first = frame["prompt"].isin(frame["prompt"][~later])
    counted = later & has_first.to_numpy()
    if not counted.any():
        return None
    random = np.random.default_rng(0)
    expected, hits = 0.0, np.zeros(REDRAWS)
    for _, rows in frame[has_first].groupby("prompt", sort=True):
        pool = pd.factorize(rows["answer"][visits.number[rows["visit"]] == 0])[0]
        sizes = rows.groupby("visit", sort=True).size().tolist()
        chance = np.bincount(pool) / len(pool)
        before = np.cumsum([0, *sizes])
        expected += sum(n * float(chance @ (1 - (1 - chance) ** past)) for n, past in zip(sizes[1:], before[1:]))
        seen = np.zeros((REDRAWS, len(chance)), bool)
        for drawn in (random.multinomial(size, chance, REDRAWS) for size in sizes):
            hits += (drawn * seen).sum(axis=1)  # at the first visit, nothing was seen
            seen |= drawn > 0
    low, high = np.quantile(hits / counted.sum(), ENDS)
    given = visits.given_before[wrong][counted] > 0
    return Recurrence(float(given.mean()), float(expected / counted.sum()), (float(low), float(high)))


def equal_pairs(visits: Visits) -> float | None:
    """Return the share of pairs of wrong answers of a visit that are equal; None without a pair."""
    wrong = visits.wrong_answer
    frame = pd.DataFrame({"visit": visits.visit[wrong], "answer": visits.answer[wrong]})
    of_visit, of_answer = frame.groupby("visit").size(), frame.groupby(["visit", "answer"]).size()
    pairs = (of_visit * (of_visit - 1)).sum()
    return float((of_answer * (of_answer - 1)).sum() / pairs) if pairs else None


def distinct_wrong(visits: Visits) -> float | None:
    """Return the mean number of distinct wrong answers of the visits that have any; None without one."""
    wrong = visits.wrong_answer
    distinct = pd.Series(visits.answer[wrong]).groupby(visits.visit[wrong]).nunique()
    return float(distinct.mean()) if len(distinct) else None


def coverage(visits: Visits) -> dict[int, float]:
    """Return by step the share of the prompts visited so far that were solved at least once so far."""
    solved = pd.Series(visits.right > 0).groupby(visits.prompt).cummax().to_numpy()
    newly = solved & ~(pd.Series(solved).groupby(visits.prompt).shift(fill_value=False).to_numpy())
    by_step = pd.DataFrame({"solved": newly, "seen": visits.number == 0}).groupby(visits.step).sum().cumsum()
    return {int(step): float(share) for step, share in (by_step["solved"] / by_step["seen"]).items()}


def usual_size(visits: Visits) -> int:
    """Return the most frequent number of responses of a visit."""
    return int(np.bincount(visits.size).argmax())


def pass_by_step(visits: Visits) -> dict[int, dict[int, float]]:
    """Return pass@k by step, for k up to the usual size of a visit; smaller visits do not count."""
    most = usual_size(visits)
    full = visits.size >= most
    right, size, step = visits.right[full], visits.size[full], visits.step[full]
    columns = {k: pd.Series(pass_at_k(size, right, k)).groupby(step).mean() for k in ks_up_to(most)}
    return {int(at): {k: float(column[at]) for k, column in columns.items()} for at in np.unique(step)}


def peak_of(visits: Visits) -> Peak | None:
    """Return where pass@k peaked; None without second visits.

    The best of many windows is too good by chance. So what is lost since is measured on each half of the prompts from
    the window that is best on the other half, and both are averaged.
    """
    if not visits.come_back:
        return None
    most = usual_size(visits)
    full = visits.size >= most
    steps, at = np.unique(visits.step[full], return_inverse=True)
    prompts, of = np.unique(visits.prompt[full], return_inverse=True)
    width = min(WINDOW, len(steps))
    ones = np.ones(len(at))
    scores = {k: pass_at_k(visits.size[full], visits.right[full], k) for k in (1, most)}

    def best_of(chosen: NDArray[np.bool_]) -> int:
        """Return the first step of the best window, of whole windows alone: cut ones at the edges are noisier."""
        sums = (np.bincount(at[chosen], value[chosen], len(steps)) for value in (scores[most], ones))
        total, count = (np.convolve(each, np.ones(width), "valid") for each in sums)
        return int(np.argmax(np.divide(total, count, out=np.full(len(total), -1.0), where=count > 0)))

    def lost_since(first: int, k: int, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of a window minus that of the last steps, with ``weights`` (resamples, prompts)."""
        means = []
        for begin in (first, len(steps) - width):
            inside = (at >= begin) & (at < begin + width)
            sums = (np.bincount(of[inside], value[inside], len(prompts)) for value in (scores[k], ones))
            total, count = (weights @ each for each in sums)
            means.append(np.divide(total, count, out=np.zeros(len(weights)), where=count > 0))
        return np.asarray(means[0] - means[1])

    random = np.random.default_rng(0)
    is_first = random.permutation(len(prompts)) % 2 == 0
    halves = [(best_of(half[of]), ~half) for half in (is_first, ~is_first)] if len(prompts) > 1 else []

    def fall(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = [lost_since(first, most, weights * others) for first, others in halves]
        return np.asarray(np.mean(parts, axis=0)) if parts else np.zeros(len(weights))

    even = np.ones((1, len(prompts)))
    drawn = [fall(random.standard_exponential((AT_ONCE, len(prompts)))) for _ in range(RESAMPLES // AT_ONCE)]
    low, high = np.quantile(np.concatenate(drawn), ENDS)
    if len(prompts) < FEW:
        low, high = -1.0, 1.0
    best = best_of(np.ones(len(at), bool))
    rise = -float(lost_since(best, 1, even)[0])
    middle, fell = int(steps[best + width // 2]), float(fall(even)[0])
    return Peak(most, middle, int(steps[-1]), len(steps), fell, (float(low), float(high)), rise)
