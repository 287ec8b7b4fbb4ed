"""Decide whether a response is right; shared by all math rewards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from meds_openrlhf.rewards.boxed import answer_of
from meds_openrlhf.rewards.verifier import AnswerVerifier

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_verifier = AnswerVerifier()


def is_right(response: str, label: object) -> bool:
    """Whether the response's last boxed answer is mathematically equal to ``label``."""
    given, gold = answer_of(response), str(label).strip()
    if given is None:
        return False
    if given == gold:
        return True
    if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(gold):
        return int(given) == int(gold)
    return _verifier.equal(gold, given)


def responses(queries: list[str], prompts: list[str]) -> list[str]:
    """The text after each prompt in its query; a query that does not contain its prompt is a response as a whole."""
    return [query[query.find(p) + len(p) :] if p in query else query for query, p in zip(queries, prompts, strict=True)]


def scores(
    queries: list[str], prompts: list[str], labels: list[Any], verdict: Callable[[str, object], bool] = is_right
) -> torch.Tensor:
    """(B,) float32: 1 for each query whose response is right by ``verdict``, 0 for the others."""
    answered = zip(responses(queries, prompts), labels, strict=True)
    return torch.tensor([float(verdict(response, label)) for response, label in answered])
