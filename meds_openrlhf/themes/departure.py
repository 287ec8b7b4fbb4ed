"""Where a wrong response departs from the right ones, in words that can be compared across prompts.

The place is the first calculation that is false, or whose result no right response has. Without one it is where the
value of the wrong final answer is first written, else the first number that no right response has, else the answer.
Scratch work (``<think>``) before an answer is left out.

Numbers are what differs between prompts, so each is replaced by its part in the problem: it is in the prompt (given),
it is in a right response or the label (right), or in neither (wrong). The calculation is also compared with those of
right responses: with the same numbers, its operation may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from meds_openrlhf.rollouts.texts import ResponseText
from meds_openrlhf.themes.calculations import Equation, equations_in
from meds_openrlhf.themes.words import Word, values_at, values_in, words_in

GIVEN, RIGHT, WRONG = "given", "right", "wrong"
ROLES = frozenset((GIVEN, RIGHT, WRONG))
BEFORE, AFTER = 8, 2  # words that are kept around the place
SHOWN = 4  # words before a place without a calculation that are marked with it
_LONGEST = 12  # words by which an answer that is not a number is found, and of a calculation in a name
_WIDEST = 30  # characters of a word
READ = 8_000  # characters of a text that are read, the last ones: a solution ends with its answer

_END_OF_SCRATCH = "</think>"
_VERBS = {"+": "adds", "-": "subtracts", "*": "multiplies", "/": "divides"}
_GERUNDS = {"+": "adding", "-": "subtracting", "*": "multiplying", "/": "dividing"}
_RESULTS = {"+": "a sum", "-": "a difference", "*": "a product", "/": "a quotient"}
# How a response's place relates to the right responses, if not by its operation:
INTERMEDIATE, REPEATS = "stops at an intermediate result", "repeats a given number"
NO_CALCULATION = "no calculation"


@dataclass(frozen=True)
class Departure:
    """The place of a response: how it relates to right responses, the calculation if any, the words around, and where.

    Words of the prompt are left out of ``words``, because they tell stories apart and not mistakes.
    """

    relation: str
    calculation: str
    words: list[str]
    part: slice


class Problem:
    """A prompt with what is known of its right solutions: texts of right responses, and the label if any."""

    def __init__(self, prompt: str, right: Iterable[str] = (), truth: str | None = None) -> None:
        texts = [*right, truth or ""]
        asked, solutions = words_in(prompt[:READ]), [_read(text, text.rfind(_END_OF_SCRATCH)) for text in texts]
        self._asked = {word.text for word in asked if word.text.isalpha()} - ROLES
        self._given = values_in(asked)
        self._right = frozenset().union(*map(values_in, solutions))
        self._equations = {
            equation
            for text, words in zip(texts, solutions)
            for _, equation in equations_in(text, words, 0, len(words))
        }
        self._values = {equation.values for equation in self._equations}
        self._results = {equation.result for equation in self._equations}

    def departure(self, response: ResponseText) -> Departure:
        """Return where a wrong response departs."""
        end = len(response.text) if response.answer_start is None else response.answer_start
        words = words_in(response.text, max(end - READ, 0))
        if not words:
            return Departure(NO_CALCULATION, "", [], slice(0, 0))
        first, box = _solution(words, response)
        value = _only_value(response.answer)
        equations = equations_in(response.text, words, first, box)
        place, equation = next((found for found in equations if self._departs(found[1])), (None, None))
        if place is not None and equation is not None:
            at, relation = place.stop - 1, self._relation(equation)
            calculation = " ".join(map(self.role, words[place]))
            calculation = calculation if place.stop - place.start <= _LONGEST else ""
        else:
            at = self._without_calculation(words, first, box, response.answer)
            near = slice(max(at - SHOWN, first if at >= first else 0), at + 1)
            place, calculation = next((known for known, one in equations if one.result == value), near), ""
            relation = REPEATS if value in self._given else INTERMEDIATE if value in self._right else NO_CALCULATION
        around = words[max(at - BEFORE, first if at >= first else 0) : at + 1 + AFTER]
        kept = [self.role(word) for word in around if word is words[at] or word.text not in self._asked]
        return Departure(relation, calculation, kept, slice(words[place][0].start, words[place][-1].end))

    def _departs(self, equation: Equation) -> bool:
        """Whether a calculation is false, and no slip of a sign that right responses write, or has a new result."""
        if equation.result not in self._results:
            return True
        return equation.holds is False and equation.values not in self._values

    def _relation(self, equation: Equation) -> str:
        """In words how a calculation differs from those of right responses."""
        numbers = sorted(equation.numbers)
        same = sorted((right for right in self._equations if sorted(right.numbers) == numbers), key=str)
        signs = [*dict.fromkeys(sign for sign in equation.operations if sign in _VERBS)]
        if equation.holds is False:
            return f"miscalculates {' and '.join(_RESULTS[sign] for sign in signs)}"
        verbs = " and ".join(_VERBS[sign] for sign in signs)
        others = [*dict.fromkeys(sign for sign in same[0].operations if sign in _VERBS)] if same else signs
        return verbs if {*others} == {*signs} else f"{verbs} instead of {' and '.join(_GERUNDS[s] for s in others)}"

    def _without_calculation(self, words: Sequence[Word], first: int, box: int, answer: str | None) -> int:
        """The place of the answer's value, of the first wrong number, or of the answer."""
        for start, end in ((first, box), (0, first)):
            written = _written(words, start, end, answer)
            if written is not None:
                return written
        known = self._given | self._right
        wrong = (
            place
            for place in range(first, box)
            if words[place].value is not None and not known & {*values_at(words, place)}
        )
        return next(wrong, min(box, len(words) - 1))

    def role(self, word: Word) -> str:
        """Return a word's text, or a number's part in the problem."""
        if word.value is None:
            return word.text[:_WIDEST]
        either = {word.value, -word.value}
        return GIVEN if either & self._given else RIGHT if either & self._right else WRONG


def _read(text: str, scratch: int) -> list[Word]:
    """The last words of a right response, behind the scratch work that ends at ``scratch``, if anything follows it."""
    words = words_in(text, max(scratch + len(_END_OF_SCRATCH) if scratch >= 0 else 0, len(text) - READ))
    return words or words_in(text[-READ:])


def _solution(words: Sequence[Word], response: ResponseText) -> tuple[int, int]:
    """From which word on the solution is, behind scratch work if an answer follows it, and at which its answer is."""
    start = len(response.text) if response.answer_start is None else response.answer_start
    scratch = response.text.rfind(_END_OF_SCRATCH, 0, start) if response.answer_start is not None else -1
    behind = scratch + len(_END_OF_SCRATCH) if scratch >= 0 else 0
    first = next((place for place, word in enumerate(words) if word.start >= behind), 0)
    return first, next((place for place, word in enumerate(words) if word.end > start), len(words))


def _only_value(answer: str | None) -> Fraction | None:
    """The value of an answer with a single number or quotient."""
    words = words_in((answer or "")[:READ])
    values = [value for place in range(len(words)) for value in values_at(words, place)[-1:]]
    return values[0] if values and len(values) <= 1 + ("/" in [word.text for word in words]) else None


def _written(words: Sequence[Word], start: int, end: int, answer: str | None) -> int | None:
    """The first place between ``start`` and ``end`` where the answer is written: its value, or else its words."""
    value = _only_value(answer)
    if value is not None:
        return next((place for place in range(start, end) if value in values_at(words, place)), None)
    wanted = [word.text for word in words_in((answer or "")[:READ])][:_LONGEST]
    texts = [word.text for word in words[start:end]]
    places = range(len(texts) - len(wanted) + 1) if wanted else range(0)
    return next((start + place for place in places if texts[place : place + len(wanted)] == wanted), None)
