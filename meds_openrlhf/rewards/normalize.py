"""Normalize the notation of an answer before math-verify parses it, without changing its meaning.

Numbers, intervals and sets get a single spelling. A unit, a percent sign, a number's base and a modulus are split off
for `meds_openrlhf.rewards.comparison`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from meds_openrlhf.rewards.typesetting import in_plain_latex
from meds_openrlhf.rewards.units import split_unit

_TEXT = r"\\text\s*\{([^{}]*)\}"
_PERCENT = re.compile(
    r"\s*\\text\s*\{\s*(?:percent|per\s+cent|percentage|pct)\s*\}$|\s*\b(?:percent|percentage|pct)$|\s*\\text\s*\{\s*\\?%\s*\}$"
)
_CHINESE = re.compile(  # units and counters; 万 and 分之一 are none
    r"(?<=[\d}])\s*(?:\\text\s*\{)?\s*[(]?((?:平方|立方)?(?:千米|公里|分米|厘米|毫米|米)(?:[/每](?:小时|时|分钟?|秒))?|千克|公斤|克|吨|毫升|升"
    r"|小时|分钟?|秒|天|日|周|个?月|年|岁|元|角|度|个|人|只|本|支|次|种|名|张|棵|辆|台|件|块|页|倍|组|条|道|位|箱|袋|头|对|场|层|间|户|瓶)[)]?\s*\}?$"
)
_MODULUS = re.compile(r"\s*(?:\\p?mod\s*\{?|\(?\s*(?:\\b?mod|\\text\s*\{\s*\(?\s*mod\s*\}?|mod)\s*)(\d+)\s*[})]*\s*$")
_BASE = re.compile(
    r"(?:[a-zA-Z]\s*=\s*)?(-?)\(?(?:\\text\s*\{)?([\dA-F]*\d[\dA-F]*(?:\.[\dA-F]+)?)[})]*\s*"
    r"(?:_\{?|\(?\s*\\text\s*\{\s*(?:in\s+)?\(?base\s*\}?\s*)([2-9]|1[0-6])[})]*"
)
# 3_x, a numeral whose base is unknown, becomes a symbol: math-verify would drop the subscript.
_SUBSCRIPTED = re.compile(r"(?<![\w.^])(\d[\dA-F.]*)_\{?(\w+)\}?")
# 2(3+1), (2)(3) and (2)\frac{1}{3} are products; math-verify would read a mixed number, a point or a call.
_PRODUCT = re.compile(
    r"((?<![\w._^\\])\d+(?:\.\d+)?|\((?:\d+(?:\.\d+)?)\)|\[\d+\])\s*(?=[(\[][^,;()\[\]]*(?:\([^,;()]*\)[^,;()]*)?[)\]])"
)
_PRODUCT_OF_FRACTION = re.compile(r"(\(\d+(?:\.\d+)?\))\s*(?=\\frac)")
_RATIO = re.compile(r"\d{1,18}(?:\s*:\s*\d{1,18}){2,}")
# Money is a unit of its own, as split_unit would name it.
_MONEY = {r"\$": "$1", r"\textdollar": "$1", "€": "euro1", r"\euro": "euro1", "£": "lb1", r"\pounds": "lb1"}
_SIGNS = re.compile(r"\\\$|\\(?:textdollar|euro|pounds)(?![a-zA-Z])|[€£]")
_ANGLE = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{?-?\d+\}?)?\s*[({]?\s*)(-?\d+(?:\.\d+)?)\s*\^\s*\{?\s*\\circ(?![a-zA-Z])\s*\}?"
)
_PARAMETER = re.compile(r"\s*[,(]\s*[a-z]\s*\\in\s*(?:\\(?:mathbb|text)\s*\{?\s*)?Z\s*\}?\s*\)?$")  # any integer k
_TRUTH = frozenset(("true", "false", "yes", "no", "t", "f"))
_BUILDER = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*\\(?:mathbb|text)\s*\{?\s*R\s*\}?)?\s*(?:\\mid|\\vert|\||:)\s*(.*)\\\}"
)
_ENDS = re.compile(r"([\[\](])([^,;]*)[,;]([^,;]*)([\[\])])")
_DESCENDS = re.compile(r"\s*(?:>|\\ge(?:q|qslant)?(?![a-zA-Z])|\\gt(?![a-zA-Z]))\s*")
_ORDER = re.compile(r"[<>]|\\[lg]e(?:q|qslant)?(?![a-zA-Z])|\\[lg]t(?![a-zA-Z])")
_GROUPED = re.compile(r"(?<![\w.^])\d{1,3}(?:(?:\{,\}|\s)\d{3})+(?!\d)")
_WITH_COMMAS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d+)?)[eE]([+-]?\d+)")
_MIXED = re.compile(r"([+-]?\d+) (\d+)\s*/\s*(\d+)")
_BARRED = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{(\d+)\}")
_REPEATING = re.compile(r"([+-]?\d*)\.(\d*)\((\d+)\)")
_ELLIPSIS = r"(?:\\[lc]?dots(?![a-zA-Z])|\.\.\.|…)"
_REPEATED = re.compile(r"([+-]?\d*)\.(\d*?)(?:(\d)\3\3+|(\d\d+)\4+)" + _ELLIPSIS)
_ENDLESS = re.compile(r"([+-]?\d*\.\d+)" + _ELLIPSIS)
_TWO_NUMBERS = re.compile(r"(?<![\w.^])\d[\d.]*\s+\d")
_TIME = re.compile(r"(?=.*[:Mm])([01]?\d|2[0-4])(?:(?:\{:\}|:)([0-5]\d))?(?:\s*([AaPp])\.?\s*[Mm]\.?)?")
_DOTS = re.compile(_ELLIPSIS)
_CHOICE = re.compile(r"([A-J])\)?|\(([A-Ja-j])\)")
_LABEL = re.compile(r"(?:answer|option|choice)\s*:?\s*(?=\S)", re.IGNORECASE)
_AND = re.compile(r"\s*(?:[,;]|\band\b|\\?&)\s*")
_WORDS = re.compile(r"(?=.*[a-zA-Z]{3})[a-zA-Z][a-zA-Z\s'-]{2,}[a-zA-Z]")  # `p - q` is none


class UnreadableError(ValueError):
    """The text is not a single answer."""


@dataclass(frozen=True)
class Answer:
    """A normalized answer: the LaTeX ``text`` without its ``unit``, percent sign, ``base`` and ``modulus``.

    ``words``: the text is not mathematics but a word, a phrase or the letter of a choice, in lower case. A ``time``
    such as 9:05 is the minutes since midnight, or noon: ``noon`` is a, p, not said, or "24" of 15:30.
    """

    text: str
    unit: str = ""
    percent: bool = False
    base: str = ""
    words: bool = False
    time: str = ""
    noon: str = ""
    modulus: str = ""


def read(text: str) -> Answer:
    """Read ``text`` as an `Answer`. Raises UnreadableError for two numbers with nothing between them."""
    signs = _SIGNS.findall(text)
    is_delimited = len(signs) == 2 and text.strip().startswith(r"\$") and text.strip().endswith(r"\$")
    money = set() if is_delimited else {_MONEY[sign] for sign in signs}
    text = in_plain_latex(text)
    clock = _TIME.fullmatch(re.sub(_TEXT, r"\1", text))
    if clock:
        hours, minutes, noon = int(clock[1]), int(clock[2] or 0), (clock[3] or "").lower()
        if 12 < hours < 24 and not noon:
            hours, noon = hours - 12, "24"
        return Answer(f"{clock[1]}:{minutes}", time=str(60 * hours + minutes), noon=noon)
    text, modulus = _split(text, _MODULUS)
    text, unit = _split(text, _CHINESE)
    if not unit:
        text = _PERCENT.sub("%", text)
        text, unit = split_unit(text)
    unit = " ".join(sorted({*unit.split(), *money}))
    text = _PARAMETER.sub("", _ANGLE.sub(r"\1(\\frac{\2\\pi}{180})", text))
    percent = text.endswith("%")
    text = _one_number(text.rstrip("\\% "))
    if _DOTS.search(text):  # a sequence, which is no value: 1,2,...,n
        return Answer(re.sub(r"\s", "", _DOTS.sub(r"\\ldots", text)), unit, words=True)
    phrase = _phrase(text)
    if phrase is not None:
        return Answer(phrase, unit, words=True)
    based = _BASE.fullmatch(text)
    if based and all(int(digit, 16) < int(based[3]) for digit in based[2].replace(".", "")):
        return Answer(based[1] + based[2], unit, base=based[3])
    text = _one_notation(_SUBSCRIPTED.sub(r"\\Phi_{\1b\2}", text))
    if _TWO_NUMBERS.search(text):
        raise UnreadableError(text)
    return Answer(text, unit, percent, modulus=modulus)


def _split(text: str, ending: re.Pattern[str]) -> tuple[str, str]:
    """The text before an optional ``ending``, and what its group finds."""
    found = ending.search(text)
    return (text[: found.start()].rstrip(), found[1]) if found and text[: found.start()].strip() else (text, "")


def _one_notation(text: str) -> str:
    """Write intervals as [a,b), sets of tuples without braces, conditions for set-builders, and rising chains."""
    builder = _BUILDER.fullmatch(text)
    if builder and _ORDER.search(builder[2]):
        text = builder[2].strip()
    ends = _ENDS.fullmatch(text)
    if ends and (ends[1] == "]" or ends[4] == "[" or ";" in text):
        text = f"{ends[1].replace(']', '(')}{ends[2]},{ends[3]}{ends[4].replace('[', ')')}"
    if text.startswith(r"\{(") and text.endswith(r")\}"):
        text = text[2:-2]
    if "(" in text:
        text = re.sub(r"\([^()]*\)", lambda found: found[0].replace(";", ","), text)
    parts = _DESCENDS.split(text)
    if len(parts) > 2 and "<" not in text and r"\l" not in text:
        signs = [sign.strip() for sign in _DESCENDS.findall(text)]
        rising = ["<" if sign in (">", r"\gt") else r"\le " for sign in signs]
        text = parts[-1] + "".join(sign + part for sign, part in zip(rising[::-1], parts[-2::-1]))
    if _RATIO.fullmatch(text):
        terms = [int(term) for term in text.split(":")]
        text = f"({','.join(str(term // (math.gcd(*terms) or 1)) for term in terms)})"
    return _PRODUCT_OF_FRACTION.sub(r"\1\\cdot ", _PRODUCT.sub(r"\1\\cdot ", text))


def _one_number(text: str) -> str:
    """Join grouped digits to a number; a comma groups digits only if the whole answer is that number."""
    text = _GROUPED.sub(lambda match: re.sub(r"\{,\}|\s", "", match[0]), text)
    sides = text.split("=")
    text = "=".join(side.replace(",", "") if _WITH_COMMAS.fullmatch(side.strip()) else side for side in sides)
    text = _BARRED.sub(lambda found: _repeating(found[1], found[2], found[3]), text)
    for pattern, spelling in ((_SCIENTIFIC, r"\1\\times 10^{\2}"), (_MIXED, r"\1\\frac{\2}{\3}")):
        if pattern.fullmatch(text):
            return pattern.sub(spelling, text)
    repeating = _REPEATING.fullmatch(text) or _REPEATED.fullmatch(text)
    if repeating:
        whole, fixed, *periods = repeating.groups(default="")
        return _repeating(whole, fixed, "".join(periods))
    return _ENDLESS.sub(r"\1", text)


def _repeating(whole: str, fixed: str, period: str) -> str:
    r"""Convert a repeating decimal, e.g. ``0.1\overline{6}``, to a fraction."""
    numerator = int(f"{whole}{fixed}{period}") - int(f"{whole}{fixed}" if whole.strip("+-") + fixed else "0")
    return rf"\frac{{{numerator}}}{{{10 ** len(fixed) * (10 ** len(period) - 1)}}}"


def _phrase(text: str) -> str | None:
    """The normalized phrase of an answer in words, in lower case; None for mathematics. Lists are sorted."""
    inner = _LABEL.sub("", re.sub(_TEXT, r"\1", text).strip().rstrip("."), count=1)
    wrapped = inner != text and re.fullmatch(rf"(?:{_TEXT}|[\s,;&]|\\&)+", text.strip()) is not None
    parts = [part for part in _AND.split(inner) if part]
    if len(parts) > 1 and {part.lower() for part in parts} <= _TRUTH:
        return ", ".join(part.lower()[0] for part in parts)  # in their order
    if re.fullmatch("[A-Z]{3,}", inner):  # letters are no factors: HTH is not HHT
        is_choices = inner == "".join(sorted(set(inner))) and inner[-1] <= "J"
        return ", ".join(inner.lower()) if is_choices else inner.lower()
    if parts and all(_CHOICE.fullmatch(part) for part in parts):
        return ", ".join(sorted(part.strip("()").lower() for part in parts))
    if (parts and all(map(_WORDS.fullmatch, parts))) or (wrapped and any(c.isalpha() for c in inner)):
        return ", ".join(sorted(" ".join(part.lower().split()) for part in parts))
    return None
