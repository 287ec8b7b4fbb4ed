"""A problem of reasoning-gym as a label: JSON with its task, settings, entry and the lowest score that counts as right.

The label has everything that the task's own scorer needs, so that training and evaluation judge alike. Scorers run in
the processes of `meds_openrlhf.rewards.verifier`, because some of them compute for long.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from typing import Any

from meds_openrlhf.json_text import parse_json

_HEAD = '{"reasoning_gym": '  # how a label begins; no mathematics does
_TUPLE = "__tuple__"

# Scorers of ten tasks evaluate the answer as Python, some through sympy. It may compute there, but not call or read
# anything else: the answer could change its own score.
_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")
_FUNCTIONS = frozenset(
    ("sqrt", "exp", "log", "ln", "abs", "Abs", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan")
)
_CALL = re.compile(r"([^\W\d]\w*|[\])}'\"])\s*\(")
_BEYOND = re.compile(r"__|[\\#]|:=|\.\s*[^\W\d]")  # attributes, and what could hide one
_NAME = re.compile(r"[^\W\d]\w+")


def label(task: str, settings: dict[str, Any], threshold: float, entry: dict[str, Any]) -> str:
    """The label of a problem. ``settings`` are the task's, without size and seed.

    Raises TypeError if the entry contains values that JSON lacks, other than tuples and numpy's numbers and arrays.
    """
    fields = {"reasoning_gym": task, "settings": settings, "threshold": threshold, "entry": _plain(entry)}
    return json.dumps(fields)


def is_label(text: str) -> bool:
    """Whether the text is a label of this module."""
    return text.startswith(_HEAD)


def require_label(text: str) -> None:
    """Raise ValueError unless the text is a label whose task the installed reasoning-gym has."""
    if not is_label(text):
        raise ValueError(f"{text[:80]!r} is not a problem of reasoning-gym. Make it with `meds data prepare gym:TASK`.")
    _task_of(_read(text))


def equal(gold: str, given: str) -> bool:
    """Whether the answer ``given`` reaches the score that the label ``gold`` asks for."""
    fields = _read(gold)
    return score(_task_of(fields), given, fields["entry"]) >= float(fields["threshold"])


def score(task: Any, answer: str, entry: dict[str, Any]) -> float:
    """The task's own score of an answer, usually from 0 to 1. Raises the scorer's errors."""
    words = _evaluated(type(task).score_answer)
    if words is not None and _reaches_beyond(answer, words):
        return 0.0
    return float(task.score_answer(answer, entry))


def read_entry(text: str) -> dict[str, Any]:
    """The entry of a label, tuples included."""
    entry: dict[str, Any] = _read(text)["entry"]
    return entry


def _task_of(fields: dict[str, Any]) -> Any:
    return _task(fields["reasoning_gym"], json.dumps(fields["settings"]))


@functools.lru_cache
def _task(name: str, settings: str) -> Any:
    """The task, for its scorer. Raises ValueError if reasoning-gym has no such task or refuses the settings."""
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(name, size=1, seed=0, **parse_json(settings))
    except (AssertionError, TypeError) as error:
        raise ValueError(f"reasoning-gym's {name} refuses the settings {settings}: {error}") from error


def warm_up() -> None:
    """Import the tasks, before limits apply to the process."""
    import reasoning_gym  # noqa: F401


@functools.lru_cache
def _evaluated(scorer: Any) -> frozenset[str] | None:
    """The names of the scorer's variables, if it evaluates the answer as Python; None if not."""
    if not _EVALUATES.search(inspect.getsource(scorer)):
        return None
    return frozenset(scorer.__code__.co_varnames)


def _reaches_beyond(answer: str, words: frozenset[str]) -> bool:
    """Whether evaluating the answer could do more than compute.

    Python reads other forms of a letter, such as full-width ones, as the letter itself: only ASCII is evaluated.
    """
    calls = {match[1] for match in _CALL.finditer(answer)}
    names = words & set(_NAME.findall(answer))
    return bool(not answer.isascii() or _BEYOND.search(answer) or calls - _FUNCTIONS or names)


def _read(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = parse_json(text, object_hook=_with_tuples)
    return fields


def _with_tuples(fields: dict[str, Any]) -> Any:
    return tuple(fields[_TUPLE]) if fields.keys() == {_TUPLE} else fields


def _plain(value: Any) -> Any:
    """The value with lists and tagged lists in place of numpy's arrays and of tuples."""
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(part) for part in value]}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value.tolist() if type(value).__module__ == "numpy" else value
