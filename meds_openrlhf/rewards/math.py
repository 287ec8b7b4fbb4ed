"""Math answers: 1 where the last boxed answer of the response equals the label, 0 otherwise.

OpenRLHF loads this file by its path (``meds.reward: math``) and calls `reward_func` in a thread per response.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import torch

from meds_openrlhf.rewards.verifier import AnswerVerifier

# A longer "answer" is a derivation or a loop.
LONGEST_ANSWER = 256

_NUMBER = re.compile(r"[+-]?\d{1,40}(\.\d{1,40})?")
_verifier = AnswerVerifier()


def last_boxed(text: str) -> str | None:
    """The content of the last ``\\boxed{...}`` with balanced braces; None without one, or where it never closes."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for index in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[begin:index]
    return None


def is_right(response: str, label: object) -> bool:
    """Whether the response's last boxed answer equals ``label``, as mathematics, not as text."""
    answer = last_boxed(response)
    if answer is None or not answer.strip() or len(answer) > LONGEST_ANSWER:
        return False
    given, gold = answer.strip(), str(label).strip()
    if given == gold:
        return True
    if _NUMBER.fullmatch(given) and _NUMBER.fullmatch(gold):
        return Fraction(given) == Fraction(gold)
    return _verifier.equal(gold, given)


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """OpenRLHF's reward function: ``queries`` are prompts with their responses, (B,) rewards and scores come back."""
    verdicts = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        response = query[len(prompt) :] if query.startswith(prompt) else query
        verdicts.append(float(is_right(response, label)))
    rewards = torch.tensor(verdicts)
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
