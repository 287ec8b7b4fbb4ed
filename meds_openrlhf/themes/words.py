"""The words of a text with their places: numbers by their value, LaTeX as mathematics, and no markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

# No alternative repeats what repeats inside it, so that the search is linear.
_WORD = re.compile(
    r"(?P<number>\d{1,3}(?:(?:,|\{,\}|\\,)\d{3}){1,6}(?![\d,])(?:\.\d{1,40})?|\d{1,40}(?:\.\d{1,40})?|(?<![\w.])\.\d{1,40})"
    r"|\\[dt]?frac\s?\{(?P<over>[^{}]{1,60})\}\s?\{(?P<under>[^{}]{1,60})\}"
    r"|\\(?:begin|end)\s?\{[^{}]{0,30}\}"
    r"|\\(?P<command>[a-zA-Z]+)"
    r"|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)?)"
    r"|\*\*|^[ \t]*[-*•][ \t]"  # bold type, and items of a list
    r"|\\?(?P<percent>%)|(?<!\\)(?P<sign>[-+*/=<>^()×÷·⋅∙∗⁄−–≤≥≠≈→])",
    re.MULTILINE,
)
_NEW_LINE = re.compile(r"\n|\\\\")  # of text, or of LaTeX
_SIGNS = {"×": "*", "·": "*", "⋅": "*", "∙": "*", "∗": "*", "÷": "/", "⁄": "/", "−": "-", "–": "-"}
_COMMANDS = {
    "times": "*", "cdot": "*", "div": "/", "frac": "/", "dfrac": "/", "tfrac": "/", "le": "≤", "leq": "≤", "ge": "≥",
    "geq": "≥", "neq": "≠", "ne": "≠", "approx": "≈", "to": "→", "rightarrow": "→",
}  # fmt: skip
_LAYOUT = frozenset((
    "text", "textbf", "textit", "mathrm", "mathbf", "mathit", "left", "right", "big", "bigl", "bigr", "Big", "quad",
    "qquad", "boxed", "displaystyle",
))  # fmt: skip
_OPERATORS = {"plus": "+", "minus": "-", "times": "*", "equals": "="}
_SMALL = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_VALUES = {word: Fraction(number) for number, word in enumerate(_SMALL, start=2)}


class Word(NamedTuple):
    """A word, number or sign of a text: in lower case and plain, its place, a number's value, if it begins a line."""

    text: str
    start: int
    end: int
    value: Fraction | None = None
    begins_line: bool = False

    @property
    def is_negative(self) -> bool:
        """Whether it is a minus sign that a line begins with, so one that subtracts from nothing."""
        return self.begins_line and self.text == "-"


def words_in(text: str, start: int = 0) -> list[Word]:
    """Return the words of ``text`` from ``start`` on, fractions as quotients; punctuation and markup are left out."""
    words = list(_words(text, start, len(text)))
    for place, (before, word) in enumerate(pairwise(words), start=1):
        if _NEW_LINE.search(text, before.end, word.start):
            words[place] = word._replace(begins_line=True)
        elif word.value is not None and before.text == "x" and place > 1 and words[place - 2].value is not None:
            words[place - 1] = before._replace(text="*")  # 3 x 4
    return words


def _words(text: str, start: int, end: int) -> Iterator[Word]:
    for found in _WORD.finditer(text, start, end):
        kind = found.lastgroup
        if kind == "word":  # first, because most are
            word = found[0].lower()
            yield Word(_OPERATORS.get(word, word), found.start(), found.end(), _VALUES.get(word))
        elif kind == "number":
            yield Word(found[0], *found.span(), _value(found[0]))
        elif kind in ("sign", "percent"):
            yield Word(_SIGNS.get(found[kind], found[kind]), *found.span())
        elif kind == "command" and found[kind] not in _LAYOUT:
            yield Word(_COMMANDS.get(found[kind], found[0]), *found.span())
        elif kind == "under":
            yield from _part(text, *found.span("over"))
            yield Word("/", found.end("over"), found.start("under"))
            yield from _part(text, *found.span("under"))


def _part(text: str, start: int, end: int) -> Iterator[Word]:
    """The words above or below a fraction's line, in parentheses if they are a calculation."""
    words = list(_words(text, start, end))
    is_calculation = len(words) > 2 and any(word.text in _OPERATORS.values() or word.text == "/" for word in words)
    yield from [Word("(", start, start)] * is_calculation
    yield from words
    yield from [Word(")", end, end)] * is_calculation


@lru_cache(10_000)
def _value(number: str) -> Fraction:
    return Fraction(re.sub(r"[^\d.]", "", number))


def values_at(words: Sequence[Word], place: int) -> tuple[Fraction, ...]:
    r"""Return the values of the number at ``place``, if any, and of a quotient there: 1/2 or ``\frac{1}{2}``.

    They are negative behind a minus sign that subtracts from nothing.
    """
    first = words[place].value
    if first is None:
        return ()
    if place and words[place - 1].text == "-":
        subtracts = place > 1 and _ends_a_term(words[place - 2]) and not words[place - 1].is_negative
        first = first if subtracts else -first
    divisor = words[place + 2].value if place + 2 < len(words) and words[place + 1].text == "/" else None
    return (first, first / divisor) if divisor else (first,)


def _ends_a_term(word: Word) -> bool:
    return word.value is not None or word.text == ")"


def values_in(words: Sequence[Word]) -> frozenset[Fraction]:
    """Return the values of all numbers and quotients among ``words``."""
    return frozenset(value for place in range(len(words)) for value in values_at(words, place))
