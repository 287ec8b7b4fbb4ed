"""Extract a response's answer: the content of its last box."""

from __future__ import annotations

import re

# Characters; longer content is a derivation or a loop, not an answer.
LONGEST_ANSWER = 256

_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is a character, not a group


def last_boxed(text: str) -> str | None:
    """The content of the last ``\\boxed{...}`` with balanced braces.

    None if there is none, or if it does not close within `LONGEST_ANSWER` characters.
    """
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for brace in _BRACES.finditer(text, begin, begin + LONGEST_ANSWER + 1):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[begin : brace.start()]
    return None


def answer_of(response: str) -> str | None:
    """The response's answer; None if its last box is missing, open, empty or longer than `LONGEST_ANSWER`."""
    return (last_boxed(response) or "").strip() or None
