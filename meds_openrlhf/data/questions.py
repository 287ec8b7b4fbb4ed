"""Questions and answers as texts: extracted from their wrapping, and normalised for comparison."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from typing import Any

# What DAPO-Math-17k puts around each of its problems. It asks for another answer format than our template does.
DAPO_OPENING = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_CLOSING = '\n\nRemember to put your answer on its own line after "Answer:".'

# Parts of the wrapping and its many variants. In an unwrapped question they contradict the template.
_ANSWER_FORMAT = re.compile(
    r"the last line of your response should be|put your (?:final )?answer on its own line", re.IGNORECASE
)
# `\\` separates the rows of a matrix; it is matched so that its second backslash starts no other match.
_LATEX_NOISE = re.compile(
    r"(?P<row>\\\\)"
    r"|\\[,;:!>\s]|~|\\?\$|\\[()\[\]]"
    r"|\\(?:left|right|displaystyle|limits|quad|qquad|big|bigg)(?![a-z])"
    r"|\s+"
)
_FRACTION = re.compile(r"\\[dt]frac(?![a-z])")
_WHOLE_NUMBER = re.compile(r"([+-]?\d+)\.0*")
_DOLLAR = re.compile(r"(?<!\\)\$")


def question_text(value: Any) -> str | None:
    """A text, or the single user message of a chat, without its wrapping; None if there is none.

    Raises TypeError if ``value`` is neither.
    """
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        said = [message.get("content") for message in value if message.get("role") == "user"]
        if len(said) != 1:
            raise TypeError(f"{value!r:.80} is a chat with {len(said)} user messages instead of 1")
        value = said[0]
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is neither a text nor a chat with 1 user message")
    if value.startswith(DAPO_OPENING) and value.endswith(DAPO_CLOSING):
        value = value[len(DAPO_OPENING) : -len(DAPO_CLOSING)]
    return value.strip() or None


def asks_for_answer_format(question: str) -> bool:
    """Whether the text still prescribes an answer format in the words of DAPO's wrapping."""
    return _ANSWER_FORMAT.search(question) is not None


def normalised(text: str) -> str:
    """A form that is equal for questions that differ only in Unicode form, case, white space and LaTeX spacing.

    For comparison, not for display: dollar signs, ``\\left``, ``\\,`` and all white space are removed. Idempotent.
    """
    former = None
    while text != former:  # a removal can join two parts into another match
        former = text
        text = unicodedata.normalize("NFKC", text).casefold()
        text = _LATEX_NOISE.sub(lambda match: match["row"] or "", text)
        text = _FRACTION.sub(r"\\frac", text)
    return text


def problem_id(dataset: str, normalised_question: str) -> str:
    """The id of a problem: its set and a 48-bit hash of the normalised question."""
    digest = hashlib.sha256(normalised_question.encode()).hexdigest()
    return f"{dataset}-{digest[:12]}"


def answer_text(value: Any) -> str | None:
    """Turn ``33``, ``33.0`` and ``"$33$"`` into ``"33"``, ``["1", "2"]`` into ``"1, 2"``; None if there is no answer.

    Removes the decimal point of whole numbers, and the dollar signs around formulas, which a response puts into
    ``\\boxed{}``. Everything else stays. Raises TypeError if ``value`` is not an answer, e.g. a record.
    """
    if isinstance(value, list):
        parts = [answer_text(part) for part in value]
        return ", ".join(part for part in parts if part is not None) or None
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{value!r:.80} is not a text, a number or a list of them")
    text = _DOLLAR.sub("", str(value)).strip()
    whole = _WHOLE_NUMBER.fullmatch(text)
    return (whole[1] if whole else text) or None
