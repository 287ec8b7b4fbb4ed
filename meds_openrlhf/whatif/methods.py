"""What each method would have done to the advantages of a run's own rollouts, against advantages without any method.

The baseline are rewards normalized by their group's mean and sample deviation (GRPO). Groups of one response have none
and are left out. Methods are those of `shaping`, with the arithmetic of a training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from meds_openrlhf.config.schema import ExplorationSettings, PenaltySettings
from meds_openrlhf.memory.successes import DECAY
from meds_openrlhf.rollouts.run import NONE
from meds_openrlhf.shaping.answer_bonus import AnswerBonus
from meds_openrlhf.shaping.focal import GAMMA, Focal
from meds_openrlhf.shaping.law import ResponseAdvantages, normalized, shaped_advantages
from meds_openrlhf.shaping.method import Advantages, Change, Floats, Method, Step
from meds_openrlhf.shaping.pass_at_k import PassAtK
from meds_openrlhf.shaping.penalty import Penalty
from meds_openrlhf.shaping.right_weight import LAMBDA, RightWeight
from meds_openrlhf.shaping.weights import Weights
from meds_openrlhf.whatif.visits import Visits

NOTHING = 0.05  # an amplitude below which a method changes nothing
BONUS = 0.2  # the weight of the answer bonus in configs/rivals.yaml
KEPT = 100  # prompts that a method changes most

_PENALTY, _EXPLORATION = PenaltySettings(), ExplorationSettings()


class LeaveOut(Method):
    """No advantages for groups whose prompt was solved before."""

    def __init__(self, solved: NDArray[np.bool_]) -> None:
        self._solved = solved

    def advantages(self, step: Step, rewards: NDArray[np.floating], so_far: Advantages) -> Change:
        """Set them to 0."""
        return Change(factor=np.where(self._solved[:, np.newaxis], 0.0, 1.0))


@dataclass(frozen=True)
class Candidate:
    """A method with its settings ``words``: made for groups (m,) of ``size`` responses, by the memory it asks."""

    name: str
    words: str
    make: Callable[[int, Visits, NDArray[np.int64]], Method]
    counts_right: bool = False  # answers of right responses are counted too


CANDIDATES = (
    Candidate(
        "penalty",
        f"the paper's penalty, alpha {_PENALTY.alpha:g}, beta {_PENALTY.beta:g}",
        lambda size, visits, groups: Penalty(_PENALTY.alpha, _PENALTY.beta),
    ),
    Candidate("weights", "wrong responses weighted by how often their error was made", lambda *_: Weights()),
    Candidate("pass-at-k", "pass@k training, k half the group", lambda size, *_: PassAtK(max(size // 2, 1))),
    Candidate("focal", f"focal weights, gamma {GAMMA:g}, decay {DECAY:g} a visit", lambda *_: Focal()),
    Candidate("right-weight", f"right responses weighted {LAMBDA:g}", lambda *_: RightWeight()),
    Candidate(
        "answer-ucb",
        f"bonus of {BONUS:g} for rare answers, baseline {_EXPLORATION.answer_baseline:g}",
        lambda *_: AnswerBonus(BONUS, _EXPLORATION.answer_baseline),
        counts_right=True,
    ),
    Candidate(
        "leave-out",
        "no training on prompts solved in most visits",
        lambda size, visits, groups: LeaveOut(visits.solved_before[groups]),
    ),
)


@dataclass(frozen=True)
class Moved:
    """How far a method would have moved the advantages.

    ``amplitude``: the root of the summed squared differences to the baseline over the root of its summed squares; None
    if the baseline is 0 everywhere. ``mixed`` is the amplitude in groups with right and wrong responses, which are all
    that dynamic filtering leaves. ``cosine`` of both over all rollouts; None if either is 0. ``seen_before`` and
    ``solved``: the shares of the summed absolute advantages on wrong answers that were given before, and on prompts
    that were solved in most of their earlier visits. ``by_step`` has the amplitude; ``prompts`` the keys of the prompts
    it changes most, with their share of the summed squared differences. ``changes_nothing``: the amplitude is below
    `NOTHING`, or, without a baseline, there are no differences.
    """

    name: str
    words: str
    amplitude: float | None
    mixed: float | None
    cosine: float | None
    seen_before: float | None
    solved: float | None
    by_step: dict[int, float | None]
    prompts: dict[str, float]
    changes_nothing: bool


def baseline_of(visits: Visits) -> Floats:
    """Return the advantages (n,) without any method, 0 for visits of one response."""
    return _advantages(visits, None)


def moved_by(visits: Visits, candidate: Candidate, baseline: Floats) -> Moved:
    """Return how far a method moves the ``baseline`` (n,)."""
    shaped = _advantages(visits, candidate)
    step, difference = visits.step[visits.visit], (shaped - baseline) ** 2
    is_mixed = ((visits.right > 0) & (visits.right < visits.size))[visits.visit]
    squares = pd.DataFrame({"moved": difference, "before": baseline**2}).groupby(step).sum()
    by_prompt = (
        pd.Series(difference).groupby(visits.prompt[visits.visit]).sum().sort_values(ascending=False, kind="stable")
    )
    most = by_prompt[by_prompt > 0][:KEPT] / (by_prompt.sum() or 1.0)
    amplitude = _amplitude(difference.sum(), (baseline**2).sum())
    return Moved(
        candidate.name,
        candidate.words,
        amplitude,
        _amplitude(difference[is_mixed].sum(), (baseline[is_mixed] ** 2).sum()),
        _ratio(float(shaped @ baseline), float(np.linalg.norm(shaped) * np.linalg.norm(baseline))),
        *shares_of(visits, shaped),
        {int(at): _amplitude(row["moved"], row["before"]) for at, row in squares.iterrows()},
        {visits.prompts[int(code)]: float(share) for code, share in most.items()},
        changes_nothing=not difference.any() if amplitude is None else amplitude < NOTHING,
    )


def shares_of(visits: Visits, advantages: Floats) -> tuple[float | None, float | None]:
    """Return the shares of the summed absolute advantages on wrong answers given before, and on solved prompts."""
    if not visits.come_back:
        return None, None
    is_seen = ~visits.correct & (visits.given_before > 0)
    pull, solved = np.abs(advantages), visits.solved_before[visits.visit]
    return _ratio(pull[is_seen].sum(), pull.sum()), _ratio(pull[solved].sum(), pull.sum())


def sizes_of(visits: Visits, candidate: Candidate) -> NDArray[np.int64]:
    """Return the cluster sizes (n,) that a method sees: the run's own memory's, or how often the answer was given."""
    if candidate.counts_right:
        return visits.given_before
    return visits.stored if visits.stored.any() else np.where(visits.correct, 0, visits.given_before)


def _advantages(visits: Visits, candidate: Candidate | None) -> Floats:
    found = np.zeros(len(visits.answer))
    sizes = np.zeros(len(found), np.int64) if candidate is None else sizes_of(visits, candidate)
    for size in np.unique(visits.size[visits.size > 1]).tolist():  # a method sees one group at a time
        groups = np.flatnonzero(visits.size == size)
        places = visits.offsets[groups, np.newaxis] + np.arange(size)
        step = Step(
            reward=visits.reward[places],
            correct=visits.correct[places],
            cluster_size=sizes[places],
            has_row=visits.answer[places] != NONE,
            is_extra=np.zeros(places.shape, bool),
            success=np.repeat(visits.success[groups, np.newaxis], size, axis=1),
        )
        methods = [] if candidate is None else [candidate.make(size, visits, groups)]
        shaped, _, _ = shaped_advantages(step, methods, _estimated)
        found[places] = shaped.values
    return found


def _estimated(rewards: NDArray[np.floating], is_replaced: bool) -> ResponseAdvantages:
    return ResponseAdvantages(np.zeros(rewards.shape) if is_replaced else normalized(rewards))


def _amplitude(moved: float, before: float) -> float | None:
    return float(np.sqrt(moved / before)) if before > 0 else None


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None
