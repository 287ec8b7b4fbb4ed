"""The methods of a run, by its settings."""

from __future__ import annotations

from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.shaping.answer_bonus import AnswerBonus
from meds_openrlhf.shaping.focal import Focal
from meds_openrlhf.shaping.method import Method
from meds_openrlhf.shaping.pass_at_k import PassAtK
from meds_openrlhf.shaping.penalty import Penalty
from meds_openrlhf.shaping.right_weight import RightWeight
from meds_openrlhf.shaping.weights import Extras, Weights

METHODS: tuple[type[Method], ...] = (Penalty, PassAtK, Weights, Extras, RightWeight, Focal, AnswerBonus)


def methods_of(meds: MedsSettings) -> list[Method]:
    """Return the methods that these settings ask for, in the order of `METHODS`."""
    return [method for kind in METHODS if (method := kind.of(meds)) is not None]
