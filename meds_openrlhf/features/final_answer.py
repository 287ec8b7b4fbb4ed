"""Encodes a final answer as a row of numbers, so that a memory can detect equal answers without layer logits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

VALUES = 2  # numbers in a row

# Markup that affects the typesetting of an answer but not its meaning.
_TYPESETTING = re.compile(r"\\left|\\right|\\displaystyle|\\[!,;: ]|\s|\$")
# At most 40 digits before and after the point: Python refuses to convert thousands, which a looping policy writes.
_NUMBER = re.compile(r"[+-]?(\d{1,40}|\d{1,3}(,\d{3}){1,13})?(\.\d{1,40})?(?<=\d)")
_QUOTIENT = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<over>\d{1,40})/(?P<under>\d{1,40})"
    r"|\\frac(?:\{(?P<inner>[+-]?)(?P<above>\d{1,40})\}\{(?P<below>\d{1,40})\}|(?P<first>\d)(?P<second>\d)))"
)


def same_answer_form(answer: str) -> str:
    """Normalize spellings of an answer: ``\\dfrac{1}{2}``, 1/2 and 0.5 become equal, as do 7.0 and 7.

    It handles typesetting, decimal numbers and quotients of two integers, but no algebra: x + 1 and 1 + x stay
    different.
    """
    text = _TYPESETTING.sub("", answer).rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = text.replace("{,}", ",")
    if _NUMBER.fullmatch(text):
        return str(Fraction(text.replace(",", "")))
    quotient = _QUOTIENT.fullmatch(text)
    if quotient:
        over, under = (
            int(quotient[long] or quotient[latex] or quotient[short])
            for long, latex, short in (("over", "above", "first"), ("under", "below", "second"))
        )
        if under:
            is_negative = (quotient["sign"] == "-") != (quotient["inner"] == "-")
            return str(Fraction(-over if is_negative else over, under))
    return text


def answer_row(answer: str) -> NDArray[np.float32]:
    """Return a (2,) float32 row, equal for answers of the same form; other answers collide with probability 2**-48.

    Each number holds 24 bits of a hash, the number of bits that a float32 represents exactly.
    """
    digest = hashlib.blake2b(same_answer_form(answer).encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return np.array([int.from_bytes(digest[:3], "big"), int.from_bytes(digest[3:], "big")], np.float32)


def answer_rows(answers: Sequence[str | None]) -> NDArray[np.float32]:
    """Return the rows (n, 2) float32 of n answers; a row of NaN for None."""
    nothing = np.full(VALUES, np.nan, np.float32)
    rows = [nothing if answer is None else answer_row(answer) for answer in answers]
    return np.array(rows, np.float32).reshape(-1, VALUES)
