"""Encodes a final answer as a row of numbers, so that a memory can detect equal answers without layer logits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

VALUES = 2  # numbers in a row

# Markup that affects the typesetting of an answer but not its meaning.
_TYPESETTING = re.compile(r"\\left|\\right|\\displaystyle|\\[!,;: ]|\s|\$")
# At most 40 digits before and after the point: Python refuses to convert thousands, which a looping policy writes.
_NUMBER = re.compile(r"[+-]?(\d{1,40}|\d{1,3}(,\d{3}){1,13})?(\.\d{1,40})?(?<=\d)")
# A quotient of integers, or a whole number with one. Spaces are gone, except for the one in 1 1/2, which is not 11/2.
_MIXED = re.compile(r"([+-]?\d{1,40})\s+(\d{1,40}/\d{1,40})")
_QUOTIENT = re.compile(
    r"(?P<sign>[+-]?)(?:(?:(?P<whole>\d{1,40})_)?(?P<over>\d{1,40})/(?P<under>\d{1,40})"
    r"|(?P<units>\d{1,40})?\\frac(?:\{(?P<inner>[+-]?)(?P<above>\d{1,40})\}\{(?P<below>\d{1,40})\}"
    r"|(?P<first>\d)(?P<second>\d)))"
)


def same_answer_form(answer: str) -> str:
    """Normalize spellings of an answer: ``\\dfrac{1}{2}``, 1/2 and 0.5 become equal, as do 7.0 and 7.

    It handles typesetting, decimal numbers and quotients of two integers, but no algebra: x + 1 and 1 + x stay
    different.
    """
    text = _TYPESETTING.sub("", _MIXED.sub(r"\1_\2", answer))
    text = text.rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("{,}", ",")
    if _NUMBER.fullmatch(text):
        return str(Fraction(text.replace(",", "")))
    quotient = _QUOTIENT.fullmatch(text)
    value = quotient and _quotient(quotient)
    return text if value is None else str(value)


def form_codes(answers: Iterable[str]) -> NDArray[np.int64]:
    """Return numbers from 0 in order of first occurrence, equal for answers of the same form."""
    forms: dict[str, int] = {}
    return np.array([forms.setdefault(same_answer_form(answer), len(forms)) for answer in answers], np.int64)


def _quotient(found: re.Match[str]) -> Fraction | None:
    """The value of a quotient, None if it divides by 0."""
    over, under = (
        int(found[slash] or found[braced] or found[digit])
        for slash, braced, digit in (("over", "above", "first"), ("under", "below", "second"))
    )
    if not under:
        return None
    value = int(found["whole"] or found["units"] or 0) + Fraction(over, under)
    return -value if (found["sign"] == "-") != (found["inner"] == "-") else value


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
