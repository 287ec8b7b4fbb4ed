"""Calculations in a text, and whether they are right, as far as their spelling leaves no doubt.

A right calculation that is called false would name a theme wrongly, so only what is wholly understood is checked: plain
numbers with a sign between each two that begin and end where a sentence, a line or a formula may. Of powers, percents,
parentheses and units it is not known whether they hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import zip_longest
from typing import NamedTuple

from meds_openrlhf.themes.words import Word, values_at

_EQUALS = frozenset(("=", "≈", "→", "is", "are", "gives", "makes", "yields", "equal", "was"))
_DIGITS = 40  # of a number behind its point
_SIGNS = frozenset("+-*/")

_FRACTION = r"\\[dt]?frac\{\d+\}\{\d+\}"
_NUMBER = rf"(?:{_FRACTION}|(?:\\?[$€£])?(?:\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)\\?\$?)"
_OPERATOR = r"(?:[-+*/x×÷·⋅∙∗−–]|\\times|\\cdot|\\div|plus|minus|times)"
_CHECKED = re.compile(
    rf"-?{_NUMBER}(?:\s*{_OPERATOR}\s*{_NUMBER})+\s*(?:&?=|is|gives|makes|equals|yields)\s*-?{_NUMBER}(?:\s*/\s*\d+)?",
    re.IGNORECASE,
)
_TWO_DIVISIONS = re.compile(r"(?=.*(?:÷|\\div))(?=.*/)|(?=.*(?:÷|/|\\div))(?=.*frac)", re.DOTALL)  # 6 ÷ 1/3
_CONVERSIONS = (60, 100, 1000)  # minutes to hours, cents to dollars, grams to kilograms
_OPENING = re.compile(r"\\[dt]?frac\{$")
_AROUND = 40  # characters before and behind a calculation that are looked at, of its line
_BEFORE = re.compile(
    r"(?:^\s*(?:[-*•]\s+|\(?\w{1,3}[.)]\s*)?"  # a line, an item of a list
    r"|[,;.?!=&>]\s+|[=&]|\S:\s+|<<"  # a sentence, a chain of equalities, a label
    r"|(?<![\\\w])(?P<word>[A-Za-z]{2,})[,:]?\s+"
    r"|(?<![\w)\]}])(?:(?:\(|\\\(|\\\[|[$€£]{1,2})\s*|\*\*))$"
)
# Words behind which a number is not where a calculation begins: "half of 10 + 2", "week 1 - 40".
_NO_BEGINNING = frozenset((
    "average", "by", "cube", "day", "divided", "double", "dozen", "half", "hundred", "level", "log", "million", "minus",
    "mod", "month", "multiplied", "negative", "no", "number", "of", "over", "part", "per", "plus", "problem", "product",
    "quarter", "question", "root", "round", "square", "step", "sum", "third", "thousand", "thrice", "times", "to",
    "triple", "twice", "week", "year",
))  # fmt: skip
_MEASURES = (
    r"(?:percent|dozen|hundred|thousand|million|billion|cents?|dollars?|days?|weeks?|months?|years?|hours?|hrs?|h|minutes?"
    r"|mins?|seconds?|secs?|s|kg|grams?|g|km|met(?:er|re)s?|m|cm|mm|lit(?:er|re)s?|ml|l|miles?|feet|foot|ft|inch(?:es)?"
    r"|yards?|pounds?|lbs?|ounces?|oz|k|remainder|mod|modulo|or|r)"
)
# What makes another number of a result: more digits, a unit, a factor.
_GOES_ON = re.compile(
    r"\w|[.,]\d|\s*(?:[(\[^²³!%°/×÷·⋅+±…~]|\*(?!\*)|\.\.|x\s*\\?\$?\d"
    r"|\\(?![)\]\\]|(?:boxed|q?quad|implies|[Rr]ightarrow|therefore|end)\b)"
    rf"|{_MEASURES}\b)",
    re.IGNORECASE,
)


class Equation(NamedTuple):
    """A calculation: its numbers and its signs, in ascending order if it only adds or multiplies, and the result.

    ``holds`` is whether the result is right, None if that cannot be told.
    """

    numbers: tuple[Fraction, ...]
    operations: str
    result: Fraction
    holds: bool | None

    @property
    def values(self) -> tuple[Fraction, ...]:
        """The numbers in ascending order, and the result: equal for calculations that differ in their operations."""
        return *sorted(self.numbers), self.result


def equations_in(text: str, words: Sequence[Word], first: int, end: int) -> list[tuple[slice, Equation]]:
    """The calculations among the ``words`` of ``text``, each with its place up to the result."""
    found = []
    for at in range(first, end):
        if words[at].text not in _EQUALS:
            continue
        start, result = _beginning(words, first, at), at + 2 if at + 1 < end and words[at + 1].text == "-" else at + 1
        values = values_at(words, result) if result < end else ()
        after = result + 2 * len(values) - 1  # behind the number, or the quotient
        goes_on = after + 1 < end and words[after].text in "+-*/^" and words[after + 1].value is not None
        goes_on = goes_on and not words[after].is_negative
        numbers = tuple(word.value for word in words[start:at] if word.value is not None)
        signs = "".join(word.text for word in words[start:at] if word.text in "+-*/()")
        if len(numbers) > 1 and signs.strip("()") and values and not goes_on:
            holds = _holds(text, words[start:after], at - start, values)
            if not {*signs} & {*"-/()"}:
                numbers, signs = tuple(sorted(numbers)), "".join(sorted(signs))
            found.append((slice(start, after), Equation(numbers, signs, values[-1], holds)))
    return found


def _beginning(words: Sequence[Word], first: int, at: int) -> int:
    """Where the calculation before the equals sign ``at`` begins; two numbers in a row are of two sentences."""
    start = at
    while start > first and (words[start - 1].value is not None or words[start - 1].text in "+-*/()%^"):
        ends_term = words[start - 1].value is not None or words[start - 1].text == ")"
        if start < at and (words[start].is_negative or (ends_term and words[start].value is not None)):
            break
        start -= 1
    while start < at and words[start].value is None and words[start].text not in "(-":
        start += 1  # a sign before the first number belongs to the sentence: "many times, 3 * 4"
    return start


def _holds(text: str, words: Sequence[Word], equals: int, results: tuple[Fraction, ...]) -> bool | None:
    """Whether the ``words`` of a calculation, the equals sign among them, are right; None if that cannot be told.

    ``results`` are the number behind the sign, and the quotient if it is one.
    """
    begin, end = words[0].start, words[-1].end
    opening = _OPENING.search(text, max(begin - _AROUND, 0), begin)
    begin = opening.start() if opening else begin
    end += text[begin:end].count("{") > text[begin:end].count("}") and text[end : end + 1] == "}"
    written = text[begin:end]
    is_plain = _CHECKED.fullmatch(written) and not _TWO_DIVISIONS.match(written)
    is_sum = words[equals].text == "=" or equals == 3  # "from 3 - 5 - 2 is" is no calculation
    value = _value(words[:equals]) if is_plain and is_sum and _stands_alone(text, begin, end) else None
    if value is None:
        return None
    result = results[-1]
    digits = next((digits for digits in range(_DIGITS + 1) if 10**digits % result.denominator == 0), None)
    may_be_rounded = len(results) == 1 and digits is not None and abs(value - result) < Fraction(1, 10**digits)
    may_be_converted = any(value == result * factor for factor in _CONVERSIONS)
    return value == result or (None if may_be_rounded or may_be_converted else False)


def _stands_alone(text: str, begin: int, end: int) -> bool:
    """Whether nothing before or behind a calculation may belong to it."""
    before = text[max(begin - _AROUND, 0) : begin].rpartition("\n")[2].rpartition("\\\\")[2]
    behind = text[end : end + _AROUND].partition("\n")[0]
    found = _BEFORE.search(before)
    return found is not None and (found["word"] or "").lower() not in _NO_BEGINNING and not _GOES_ON.match(behind)


def _value(words: Sequence[Word]) -> Fraction | None:
    """The value of numbers with a sign between each two, None of anything else and of a division by zero."""
    signed = words if words[0].value is None else [Word("+", 0, 0), *words]
    terms: list[Fraction] = []
    for sign, number in zip_longest((word.text for word in signed[::2]), (word.value for word in signed[1::2])):
        if number is None or sign not in _SIGNS or (sign == "/" and not number):
            return None
        if sign in "+-":
            terms.append(number if sign == "+" else -number)
        else:
            terms.append(terms.pop() * (number if sign == "*" else 1 / number))
    return sum(terms, Fraction(0))
