"""Decide whether a response is right, for all rewards: its answer, and whether that equals the label.

The answer is the content of the last box, or what ``meds.features.answer_pattern`` marks. Answers are compared as
texts, as integers, or by math-verify in processes of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from meds_openrlhf.features.answer import answer_in, without_ending
from meds_openrlhf.gym.problem import is_label, made_of
from meds_openrlhf.runtime.verifier import AnswerVerifier

if TYPE_CHECKING:
    import torch

# Set where answers are judged, if the run has a pattern: rewards are called by OpenRLHF, with texts alone.
ANSWER_PATTERN = "MEDS_ANSWER_PATTERN"
MOST_UNMATCHED = 0.01  # of a training set's labels; above, the set is not made, and no training starts
_AT_ONCE = 4
LONGEST_VALUE = 256  # characters; longer content of a box is a derivation, not a value
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_verifier = AnswerVerifier("meds_openrlhf.rewards.comparison", "math_verify")


def answer_of(response: str) -> str | None:
    """The response's answer, as in rollouts, memory and report: `answer_in` its text.

    With `ANSWER_PATTERN` in the environment, the answer is what that pattern marks, and boxes are ignored.
    """
    marker = os.environ.get(ANSWER_PATTERN)
    if marker is None:
        return answer_in(response)
    pattern, special = json.loads(marker)
    return answer_in(without_ending(response, tuple(special)), pattern)


def answer_environment(pattern: str | None, special: Sequence[str] = ()) -> dict[str, str]:
    """The environment in which `answer_of` uses the pattern; ``special`` tokens may end a response's text."""
    return {} if pattern is None else {ANSWER_PATTERN: json.dumps([pattern, [*filter(None, special)]])}


def equal(gold: str, given: str) -> bool | None:
    """Whether ``given`` equals ``gold``: False if it is longer than `LONGEST_VALUE`, None if comparing takes too long.

    Raises ModuleNotFoundError if math-verify is needed and not installed.
    """
    if len(given) > LONGEST_VALUE:
        return False
    if given == gold:
        return True
    if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(gold):
        return int(given) == int(gold)
    verdict: bool | None = _verifier.ask("equal", gold, given)
    return verdict


def matches_itself(label: str) -> bool:
    """Whether another spelling of the label could equal it. Raises as `equal` does."""
    if _INTEGER.fullmatch(label):
        return True
    return len(label) <= LONGEST_VALUE and bool(_verifier.ask("matches_itself", label))


def label_text(label: object) -> str | None:
    """The text that answers are compared with; None if the label is missing: null, NaN, empty, a list or a mapping."""
    is_missing = label is None or label != label or isinstance(label, (list, dict))  # NaN is not itself
    return None if is_missing else str(label).strip() or None


def fault_of(label: object) -> str | None:
    """Why no answer can match the label, as in "is empty"; None if one may."""
    if isinstance(label, (list, dict)):
        return f"is a {'list' if isinstance(label, list) else 'mapping'}"
    text = label_text(label)
    if text is None:
        return "is empty" if isinstance(label, str) else "is null"
    return "is a worked solution" if "####" in text or not is_one_value(text) else None


def is_one_value(text: str) -> bool:
    """Whether the text is a line, or an environment such as a matrix; several lines are a solution."""
    return "\n" not in text or "\\begin{" in text


def unmatched(labels: Sequence[str]) -> list[int]:
    """The indices of the labels that do not equal themselves in another spelling: only a copy of these is right.

    Raises ModuleNotFoundError as `equal` does.
    """
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        verdicts = list(threads.map(matches_itself, labels))
    return [place for place, is_matched in enumerate(verdicts) if not is_matched]


def decide(response: str, label: object) -> bool | None:
    """Whether the response's answer is mathematically equal to ``label``, as `equal` says; a missing label is not."""
    given, gold = answer_of(response), label_text(label)
    return given is not None and gold is not None and equal(gold, given)


def is_right(response: str, label: object) -> bool:
    """Whether the response's answer is mathematically equal to ``label``, and that can be told in time."""
    return bool(decide(response, label))


def solves(response: str, label: object) -> bool | None:
    """Whether reasoning-gym's scorer calls the response's answer right; ``label`` is a `GymLabel` as text.

    None if that takes too long. Raises ValueError for another label, or one whose problem the installed reasoning-gym
    does not make.
    """
    problem = made_of(str(label))
    given = answer_of(response)
    return given is not None and problem.is_right(given)


def verdict(response: str, label: str) -> tuple[str | None, bool]:
    """The response's answer, and whether it is right: by reasoning-gym's scorer if the label is its, else as math."""
    return answer_of(response), bool((solves if is_label(label) else decide)(response, label))


def responses(queries: list[str], prompts: list[str]) -> list[str]:
    """The text after each prompt in its query; a query that does not contain its prompt is all response."""
    return [query[query.find(p) + len(p) :] if p in query else query for query, p in zip(queries, prompts, strict=True)]


def scored(
    queries: list[str], prompts: list[str], labels: list[Any], verdict: Callable[[str, object], bool | None] = decide
) -> dict[str, Any]:
    """What a reward function returns: `scores`, as rewards and scores, and the log ``undecided`` (B,).

    This is 1 where the verdict is None, which counts as wrong.
    """
    import torch

    verdicts = [verdict(response, label) for response, label in zip(responses(queries, prompts), labels, strict=True)]
    scores = torch.tensor([float(found or 0) for found in verdicts])
    undecided = torch.tensor([float(found is None) for found in verdicts])
    return {"rewards": scores, "scores": scores, "extra_logs": {"undecided": undecided}}


def scores(queries: list[str], prompts: list[str], labels: list[Any]) -> torch.Tensor:
    """(B,) float32: 1 for each query whose response is right, 0 for the others."""
    of_queries: torch.Tensor = scored(queries, prompts, labels)["scores"]
    return of_queries
