"""Decide whether a response is right; shared by all rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from meds_openrlhf.gym.label import is_label
from meds_openrlhf.gym.problem import made_of
from meds_openrlhf.rewards.boxed import answer_of
from meds_openrlhf.rewards.equality import equal
from meds_openrlhf.rewards.labels import label_text


def is_right(response: str, label: object) -> bool:
    """Whether the response's answer is mathematically equal to ``label``; a label that is missing equals nothing."""
    given, gold = answer_of(response), label_text(label)
    return given is not None and gold is not None and bool(equal(gold, given))


def solves(response: str, label: object) -> bool:
    """Whether reasoning-gym's scorer calls the response's answer right; ``label`` is a `GymLabel` as text.

    Raises ValueError for another label, or one whose problem the installed reasoning-gym does not make.
    """
    problem = made_of(str(label))
    given = answer_of(response)
    return given is not None and problem.is_right(given)


def verdict(response: str, label: str) -> tuple[str | None, bool]:
    """The response's answer, and whether it is right: by reasoning-gym's scorer if the label is its, else as math."""
    return answer_of(response), (solves if is_label(label) else is_right)(response, label)


def responses(queries: list[str], prompts: list[str]) -> list[str]:
    """The text after each prompt in its query; a query that does not contain its prompt is all response."""
    return [query[query.find(p) + len(p) :] if p in query else query for query, p in zip(queries, prompts, strict=True)]


def scores(
    queries: list[str], prompts: list[str], labels: list[Any], verdict: Callable[[str, object], bool] = is_right
) -> torch.Tensor:
    """(B,) float32: 1 for each query whose response is right by ``verdict``, 0 for the others."""
    answered = zip(responses(queries, prompts), labels, strict=True)
    return torch.tensor([float(verdict(response, label)) for response, label in answered])
