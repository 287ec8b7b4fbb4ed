"""A final answer as a row of numbers, so that a memory can tell equal answers without any layer logits."""

from __future__ import annotations

import hashlib
import re
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

VALUES = 2  # numbers in a row

# What changes how an answer is set, not what it says.
_TYPESETTING = re.compile(r"\\left|\\right|\\displaystyle|\\[!,;: ]|\s|\$")
_NUMBER = re.compile(r"[+-]?(\d{1,40}|\d{1,3}(,\d{3})+)?(\.\d{1,40})?(?<=\d)")


def same_answer_form(answer: str) -> str:
    """The text that two spellings of one answer share: ``\\dfrac{1}{2}`` and ``\\frac{1}{2}``; 7.0 and 7; 1/2 and 0.5.

    Typesetting and plain numbers only, no algebra: x + 1 and 1 + x stay two answers.
    """
    text = _TYPESETTING.sub("", answer).rstrip(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = text.replace("{,}", ",")
    if _NUMBER.fullmatch(text):
        return str(Fraction(text.replace(",", "")))
    return text


def answer_row(answer: str) -> NDArray[np.float32]:
    """(2,) float32, equal for answers of the same form; of others with a chance of 2**-48.

    Each number holds 24 bits of a hash, which is what a float32 holds exactly.
    """
    digest = hashlib.blake2b(same_answer_form(answer).encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return np.array([int.from_bytes(digest[:3], "big"), int.from_bytes(digest[3:], "big")], np.float32)
