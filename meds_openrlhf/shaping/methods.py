"""The methods of a run, by its settings."""

from __future__ import annotations

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.shaping.answer_bonus import AnswerBonus
from meds_openrlhf.shaping.method import Method
from meds_openrlhf.shaping.pass_at_k import PassAtK
from meds_openrlhf.shaping.penalty import Penalty
from meds_openrlhf.shaping.weights import Extras, Weights


def methods_of(meds: MedsSettings) -> list[Method]:
    """Return the methods that shape a step, in the order in which they are applied."""
    penalty, exploration = meds.penalty, meds.exploration
    methods: list[Method] = []
    if penalty.form == "reward":
        methods.append(Penalty(penalty.alpha, penalty.beta))
    if exploration.pass_at_k is not None:
        methods.append(PassAtK(exploration.pass_at_k))
    if penalty.form == "weights":
        methods.append(Weights())
    elif penalty.extras:
        methods.append(Extras())
    if exploration.answer_bonus:
        methods.append(AnswerBonus(exploration.answer_bonus, exploration.answer_baseline))
    return methods
