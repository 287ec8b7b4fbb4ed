"""Extract a response's answer: the content of its last box, or what ``meds.features.answer_pattern`` marks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from meds_openrlhf.features.answer import answer_behind, marked_answer, without_ending

# Set where answers are judged, if the run has a pattern: rewards are called by OpenRLHF, with texts alone.
ANSWER_PATTERN = "MEDS_ANSWER_PATTERN"

_OPENING = "\\boxed{"


def last_boxed(text: str) -> str | None:
    """The content of the last ``\\boxed{...}``; None as for `answer_behind`."""
    _, opening, rest = text.rpartition(_OPENING)
    return answer_behind(rest) if opening else None


def answer_of(response: str) -> str | None:
    """The response's answer, as in rollouts, memory and report; None if its last box is missing, open or empty.

    With `ANSWER_PATTERN` in the environment, the answer is what that pattern marks, and boxes are ignored.
    """
    marker = os.environ.get(ANSWER_PATTERN)
    if marker is None:
        return last_boxed(response)
    pattern, special = json.loads(marker)
    text = without_ending(response, tuple(special))
    span = marked_answer(pattern, text)
    return text[slice(*span)] if span is not None else None


def answer_environment(pattern: str | None, special: Sequence[str] = ()) -> dict[str, str]:
    """The environment in which `answer_of` uses the pattern; ``special`` tokens may end a response's text."""
    return {} if pattern is None else {ANSWER_PATTERN: json.dumps([pattern, [*filter(None, special)]])}
