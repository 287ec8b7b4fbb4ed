"""The text of a question: taken out of its wrapping, and brought to the form in which two of them are compared."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any

# What DAPO-Math-17k puts around each of its problems. It asks for another answer format than our template does.
DAPO_OPENING = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_CLOSING = '\n\nRemember to put your answer on its own line after "Answer:".'

# Parts of it and of its many variants. In a question that is out of its wrapping they contradict the template.
_ANSWER_FORMAT = re.compile(
    r"the last line of your response should be|put your (?:final )?answer on its own line", re.IGNORECASE
)
# `\\` is no spacing but parts the rows of a matrix; it is matched so that its second half begins nothing else.
_LATEX_NOISE = re.compile(
    r"(?P<row>\\\\)"
    r"|\\[,;:!>\s]|~|\\?\$|\\[()\[\]]"
    r"|\\(?:left|right|displaystyle|limits|quad|qquad|big|bigg)(?![a-z])"
    r"|\s+"
)
_FRACTION = re.compile(r"\\[dt]frac(?![a-z])")


def question_text(value: Any) -> str | None:
    """A text, or the one user's message of a chat, out of its wrapping; None where there is none.

    Raises TypeError for what is neither.
    """
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        said = [message.get("content") for message in value if message.get("role") == "user"]
        if len(said) != 1:
            raise TypeError(f"{value!r:.80} is a chat with {len(said)} messages of the user, not one")
        value = said[0]
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text, nor a chat with one message of the user")
    return unwrapped(value).strip() or None


def unwrapped(question: str) -> str:
    """The problem within DAPO's instructions, to the letter; any other text as it is."""
    if question.startswith(DAPO_OPENING) and question.endswith(DAPO_CLOSING):
        return question[len(DAPO_OPENING) : -len(DAPO_CLOSING)]
    return question


def asks_for_answer_format(question: str) -> bool:
    """Whether the text still tells how to write the answer, in words of DAPO's wrapping."""
    return _ANSWER_FORMAT.search(question) is not None


def normalised(text: str) -> str:
    """What two questions have in common that differ in Unicode form, case, white space and LaTeX spacing only.

    For comparing, never for reading: dollar signs, ``\\left``, ``\\,`` and all white space are gone. Idempotent.
    """
    former = None
    while text != former:  # taking one thing out can bring the halves of another together
        former = text
        text = unicodedata.normalize("NFKC", text).casefold()
        text = _LATEX_NOISE.sub(lambda match: match["row"] or "", text)
        text = _FRACTION.sub(r"\\frac", text)
    return text


def problem_id(dataset: str, normalised_question: str) -> str:
    """The id of a problem: its set, and 48 bits that depend on nothing but the normalised question."""
    digest = hashlib.sha256(normalised_question.encode()).hexdigest()
    return f"{dataset}-{digest[:12]}"
