"""Questions and answers as texts: taken from their wrapping, normalized for comparison, and put into a template."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any

from meds_openrlhf.chat_templates import CHATML
from meds_openrlhf.data.request import QWEN_MATH_SYSTEM
from meds_openrlhf.features.answer import answer_in
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.rewards.grading import is_one_value

# What DAPO-Math-17k puts around each of its problems. It asks for another answer format than our template does.
DAPO_OPENING = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_CLOSING = '\n\nRemember to put your answer on its own line after "Answer:".'

# What asks for the answer elsewhere than in a box, which contradicts the template: parts of DAPO's wrapping in its many
# variants, GSM8K's mark, tags, and phrases in quotation marks.
_ANSWER_FORMAT = re.compile(
    r"the last line of your response should be|put your (?:final )?answer on its own line|answer\b.{0,60}####"
    r"|\b(?:as|in|into) (?:an? |valid )*JSON\b|</?(?:final_?)?(?:answer|ans|solution)>"
    r"|\b(?:end|finish|line|write|output|respond|format|form)\b.{0,60}[\"'`“](?:the )?(?:final )?answer(?::| is)\s*"
    r"[\[<{$\"'`”]",
    re.IGNORECASE,
)
_BEHIND_ANSWER = "####"  # GSM8K's, before the last line
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
# What data sets write in place of an answer: NuminaMath's two, and what exports make of a missing value.
_PLACEHOLDERS = frozenset(("proof", "notfound", "not found", "n/a", "none", "null", "nan"))
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
    """Whether the text prescribes another answer format than a box."""
    return _ANSWER_FORMAT.search(question) is not None


def normalized(text: str) -> str:
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


def problem_id(dataset: str, normalized_question: str) -> str:
    """The id of a problem: its set and a 48-bit hash of the normalized question."""
    digest = hashlib.sha256(normalized_question.encode()).hexdigest()
    return f"{dataset}-{digest[:12]}"


def answer_text(value: Any, is_worked: bool = False) -> str | None:
    """The answer in a column's value, None if there is none.

    Turns ``33``, ``33.0`` and ``"$33$"`` into ``"33"``, and ``["1", "2"]`` into ``"1, 2"``, also if the list is JSON.
    Of a text with a box or with GSM8K's ``####``, the answer is what is in or behind the last; of a worked solution
    without them there is none. Nor is there one in several lines, unless they are a matrix, in placeholders such as
    "proof", and in mappings. Removes the decimal point of whole numbers, and the dollar signs around formulas, which a
    response puts into ``\\boxed{}``. Everything else stays. Raises TypeError for a value of another type.
    """
    value = _listed(value) if isinstance(value, str) else value
    if isinstance(value, list):
        parts = [None if isinstance(part, list) else answer_text(part) for part in value]
        return None if None in parts else ", ".join(map(str, parts)) or None
    if value is None or isinstance(value, dict) or value != value:  # NaN is not itself
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{value!r:.80} is not a text, a number or a list of them")
    behind = str(value).rpartition(_BEHIND_ANSWER)
    boxed, text = answer_in(behind[2]), _DOLLAR.sub("", behind[2]).strip()
    if boxed is not None:
        return answer_text(boxed.replace("\n", " "))
    is_solution = is_worked and isinstance(value, str) and not behind[1]
    if is_solution or "\\boxed" in text or not is_one_value(text) or text.casefold() in _PLACEHOLDERS:
        return None
    whole = _WHOLE_NUMBER.fullmatch(text)
    text = whole[1] if whole else text
    return (text.replace(",", "") if behind[1] and _THOUSANDS.fullmatch(text) else text) or None


def _listed(text: str) -> Any:
    """The list that the text is as JSON, if it begins as a list of texts; an interval such as [1,2] stays one."""
    if not text.lstrip().startswith('["'):
        return text
    try:
        found = parse_json(text)
    except ValueError:
        return text
    return found if isinstance(found, list) else text


def qwen_math_prompt(problem: str, system: str = QWEN_MATH_SYSTEM) -> str:
    """Apply the Qwen-Math template to a problem: system turn, user turn, and the opening of the assistant's turn.

    The template is applied as text, so the result goes to a tokenizer with `add_special_tokens=False`. Raises
    ValueError if the problem is empty or contains a chat marker (`<|im_start|>`, `<|im_end|>`), which breaks the turns.
    """
    if not problem.strip():
        raise ValueError(f"problem={problem!r}: must not be empty.")
    for marker in (CHATML.opening, CHATML.closing):
        if marker in problem:
            raise ValueError(f"problem: must not contain the chat marker {marker}. Pass the plain text of the problem.")
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
