"""What counts as a response's answer: the content of its last box."""

from __future__ import annotations

import re

# A longer "answer" is a derivation or a loop.
LONGEST_ANSWER = 256

_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)  # a brace after a backslash is a character, not a group


def last_boxed(text: str) -> str | None:
    """The content of the last ``\\boxed{...}`` with balanced braces.

    None without one, or where it does not close within `LONGEST_ANSWER` characters.
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
    """The response's answer; None where its last box is missing, open, empty or longer than an answer can be."""
    return (last_boxed(response) or "").strip() or None
