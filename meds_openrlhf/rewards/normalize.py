"""Normalise the notation of an answer before math-verify parses it, without changing its meaning.

All steps are unambiguous text substitutions: a unit, a percent sign and a number's base are split off for
`meds_openrlhf.rewards.comparison`, LaTeX noise is removed, and numbers get a single spelling.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge "}
    | {"°": r"^\circ", "$": "", "€": "", "£": "", "\n": " ", "\t": " ", "\xa0": " "}
)

# A unit's name and its other spellings; `_unit_name` also accepts plurals.
_SPELLINGS = """
millimeter mm millimetre; centimeter cm centimetre; decimeter dm; meter m metre; kilometer km kilometre; inch in inches;
foot ft feet; yard yd; mile mi; gram g; kilogram kg; ton; pound lb; ounce oz; milliliter ml mL; liter l L litre; gallon;
second s sec; minute min; hour h hr; day; week; month; year; degree deg; radian rad; dollar; cent; euro; unit; newton N;
joule J; watt W; volt V; hertz Hz; square sq; cubic cu; per
"""
_UNITS = {spelling: group.split()[0] for group in _SPELLINGS.split(";") for spelling in group.split()}
_TEXT = r"\\text\s*\{([^{}]*)\}"
_TEXT_COMMANDS = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt|normal)|math(?:rm|bf|it|sf|tt)|mbox)(?=\s*\{)")
_NOISE = re.compile(r"\\(?:displaystyle|limits|[bB]igg?|(?:left|right)\.?)(?![a-zA-Z])|\\!")
_SPACE = re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad(?![a-zA-Z]))|~|\s+")
_GROUPED = re.compile(r"(?<![\w.^])\d{1,3}(?:(?:\{,\}|\s)\d{3})+(?!\d)")
_WITH_COMMAS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d+)?)[eE]([+-]?\d+)")
_MIXED = re.compile(r"([+-]?\d+) (\d+)\s*/\s*(\d+)")
_REPEATING = re.compile(r"([+-]?\d*)\.(\d*)\\overline\{(\d+)\}")
_TWO_NUMBERS = re.compile(r"(?<![\w.^])\d[\d.]*\s+\d")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?$|\\degree$")
_IN_TEXT = re.compile(_TEXT + r"(?:\s*\^\s*\{?\s*([23])\s*\}?)?$")
_BARE = re.compile(r"(?<=[\d}\s])([a-zA-Z]{2,}(?:\s+[a-zA-Z]{2,})*)(?:\s*\^\s*\{?\s*([23])\s*\}?)?$")
_BASE = re.compile(r"(\d[\dA-F]*)_\{?([2-9]|1[0-6])\}?")
_CHOICE = re.compile(r"\(?([A-J])\)?")
_WORDS = re.compile(r"(?=.*[a-zA-Z]{3})[a-zA-Z][a-zA-Z\s'-]{2,}[a-zA-Z]")  # `p - q` is none


class UnreadableError(ValueError):
    """The text is not a single answer."""


@dataclass(frozen=True)
class Answer:
    """A normalised answer: the LaTeX ``text`` without its ``unit``, percent sign and ``base``.

    ``words``: the text is not mathematics but a word, a phrase or the letter of a choice, in lower case.
    """

    text: str
    unit: str = ""
    percent: bool = False
    base: str = ""
    words: bool = False


def read(text: str) -> Answer:
    """Read ``text`` as an `Answer`. Raises UnreadableError for two numbers with nothing between them."""
    text = _strip_noise(text)
    text, unit = _split_unit(text)
    percent = text.endswith("%")
    text = _one_number(text.rstrip("\\% "))
    phrase = _phrase(text)
    if phrase is not None:
        return Answer(phrase, unit, words=True)
    based = _BASE.fullmatch(text)
    if based:
        return Answer(based[1], unit, base=based[2])
    if _TWO_NUMBERS.search(text):
        raise UnreadableError(text)
    return Answer(text, unit, percent)


def _strip_noise(text: str) -> str:
    """Remove math delimiters, size and spacing commands, and convert digits to ASCII."""
    digits = (str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    text = "".join(digits).replace(r"\$", "").translate(_CHARACTERS)
    text = _SPACE.sub(" ", _NOISE.sub("", _TEXT_COMMANDS.sub(r"\\text", text)))
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text).replace("**", "^").replace(r"\varnothing", r"\emptyset")
    text = re.sub(r"\}\s*/\s*\\text\s*\{", "/", text)  # the unit \text{m}/\text{s}
    text = text.replace(r"\langle", "(").replace(r"\rangle", ")").rstrip(". ").lstrip()
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]"), (r"\boxed{", "}")):
        if text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)]
    return text.strip(" ").rstrip(". ")


def _split_unit(text: str) -> tuple[str, str]:
    """Split off the unit: the text before it and its canonical name, which is empty if the text has no unit."""
    if _DEGREES.search(text):
        return _DEGREES.sub("", text).rstrip(), "degree"
    for pattern in (_IN_TEXT, _BARE):
        match = pattern.search(text)
        if match and text[: match.start()].strip():
            if match[1].strip().lower() in ("percent", "percentage"):
                return text[: match.start()].rstrip() + "%", ""
            words = match[1].replace("/", " per ").replace("mph", "miles per hour")
            names = [_unit_name(word) for word in words.split()]
            if all(names):
                power = {"2": ["square"], "3": ["cubic"]}.get(match[2] or "", [])  # meter^2 becomes "square meter"
                return text[: match.start()].rstrip(), " ".join(power + names)
    return text, ""


def _unit_name(word: str) -> str:
    """A unit's canonical name; empty if ``word`` is not a unit. Symbols are case-sensitive: M is not a metre."""
    if len(word) <= 2:
        return _UNITS.get(word, "")
    singular = word.removesuffix("s")
    return _UNITS.get(word) or _UNITS.get(singular) or _UNITS.get(singular.lower(), "")


def _one_number(text: str) -> str:
    """Join grouped digits to a number; a comma groups digits only if the whole answer is that number."""
    text = _GROUPED.sub(lambda match: re.sub(r"\{,\}|\s", "", match[0]), text)
    if _WITH_COMMAS.fullmatch(text):
        return text.replace(",", "")
    for pattern, spelling in ((_SCIENTIFIC, r"\1\\times 10^{\2}"), (_MIXED, r"\1\\frac{\2}{\3}")):
        if pattern.fullmatch(text):
            return pattern.sub(spelling, text)
    repeating = _REPEATING.fullmatch(text)
    return _repeating(*repeating.groups()) if repeating else text


def _repeating(whole: str, fixed: str, period: str) -> str:
    r"""Convert a repeating decimal, e.g. ``0.1\overline{6}``, to a fraction."""
    numerator = int(f"{whole}{fixed}{period}") - int(f"{whole}{fixed}" if whole.strip("+-") + fixed else "0")
    return rf"\frac{{{numerator}}}{{{10 ** len(fixed) * (10 ** len(period) - 1)}}}"


def _phrase(text: str) -> str | None:
    """The normalised phrase of an answer in words, in lower case; None for mathematics."""
    inner = re.sub(_TEXT, r"\1", text).strip()
    wrapped = inner != text and re.fullmatch(_TEXT, text.strip()) is not None
    choice = _CHOICE.fullmatch(inner.rstrip("."))
    if choice:
        return choice[1].lower()
    if _WORDS.fullmatch(inner) or (wrapped and any(c.isalpha() for c in inner)):
        return " ".join(inner.rstrip(".").lower().split())
    return None
