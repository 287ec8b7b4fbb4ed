"""Extract a response's answer: the content of its last box, or what ``meds.features.answer_pattern`` marks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from meds_openrlhf.features.answer import answer_in, without_ending

# Set where answers are judged, if the run has a pattern: rewards are called by OpenRLHF, with texts alone.
ANSWER_PATTERN = "MEDS_ANSWER_PATTERN"


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
