"""Extract a response's answer: the content of its last box, or what ``meds.features.answer_pattern`` marks."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Sequence

from meds_openrlhf.features.answer import marked_answer, without_ending

# Characters; longer content is a derivation or a loop, not an answer.
LONGEST_ANSWER = 256

# Set where answers are judged, if the run has a pattern: rewards are called by OpenRLHF, with texts alone.
ANSWER_PATTERN = "MEDS_ANSWER_PATTERN"

_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is a character, not a group


def last_boxed(text: str, longest: int = LONGEST_ANSWER) -> str | None:
    """The content of the last ``\\boxed{...}`` with balanced braces.

    None if there is none, or if it does not close within ``longest`` characters.
    """
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for brace in _BRACES.finditer(text, begin, begin + longest + 1):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[begin : brace.start()]
    return None


def answer_of(response: str, longest: int = LONGEST_ANSWER) -> str | None:
    """The response's answer; None if its last box is missing, open, empty or longer than ``longest`` characters.

    With `ANSWER_PATTERN` in the environment, the answer is what that marks, and boxes mean nothing.
    """
    marker = os.environ.get(ANSWER_PATTERN)
    if marker is None:
        return (last_boxed(response, longest) or "").strip() or None
    pattern, special = _read_marker(marker)
    text = without_ending(response, special)
    span = marked_answer(pattern, text)
    return text[slice(*span)] if span is not None and span[1] - span[0] <= longest else None


def answer_environment(pattern: str | None, special: Sequence[str] = ()) -> dict[str, str]:
    """The environment in which `answer_of` uses the pattern; ``special`` tokens may end a response's text."""
    return {} if pattern is None else {ANSWER_PATTERN: json.dumps([pattern, [*filter(None, special)]])}


@functools.lru_cache
def _read_marker(marker: str) -> tuple[str, tuple[str, ...]]:
    pattern, special = json.loads(marker)
    return pattern, tuple(special)
