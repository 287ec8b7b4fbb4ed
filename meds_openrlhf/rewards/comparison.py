"""Decide whether two answers are mathematically equal: math-verify, restricted to a single answer and its digits.

math-verify searches for answers anywhere in a text and is lenient. Here the whole text is the answer: it is wrong if it
does not parse as a single expression, and every part of a chain of equalities has to be right.

This code runs in the processes of `meds_openrlhf.runtime.verifier`, because parsing and comparing may never finish.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import (  # type: ignore[import-untyped]
    NormalizationConfig,
    latex2sympy,
    normalize_latex,
)
from math_verify import verify
from math_verify.grader import should_treat_as_complex
from sympy import Expr, Float, I, Interval, Pow, Rational, Set, Tuple, nan, zoo  # type: ignore[import-untyped]

from meds_openrlhf.rewards.normalize import Answer, UnreadableError, read

# Of decimals, six significant digits: 0.333333 is a third, 0.3333 is not. math-verify rounds to six decimals.
OF_DECIMALS, OF_EXACT_VALUES = 5e-6, 1e-20
# An expression that is zero, and of which sympy does not know it, evaluates to about 1e-125.
ZERO = 1e-60

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns about disabled timeouts

_SPELLING = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
_EQUALS = re.compile(r"(?:(?<![\\<>!:=])|(?<=\d!))=(?!=)")  # 4!=24 is no inequality
_ORDER = re.compile(r"[<>]|\\[lg](?:eq?|t)?(?:slant)?(?![a-zA-Z])")
_INTEGER = re.compile(r"\s*-?\d{1,40}\s*")
_SHARE = re.compile(r"-?(?:0?\.\d+|\\frac\{(\d{1,9})\}\{(\d{1,9})\})")
_NAMED = re.compile(r"([a-zA-Z]|\\[a-zA-Z]+)\s*=\s*([^=,]+)")
_NO_NAME = re.compile(r"[{(\[\s]*(?:[-+.\d]|\\(?:pi|sqrt|log|ln)(?![a-zA-Z]))|\((?!.*,)|\\frac(?=.*\d)|\|.*x.*\|$")
_NO_LETTERS = re.compile(r"\\(?:frac|sqrt|pi|cdot|times|div|log|ln|sin|cos|tan|binom|infty|pm)(?![a-zA-Z])")


def equal(gold: str, given: str) -> bool:
    """Whether the LaTeX text ``given`` equals the label ``gold``. Raises the parsers' errors."""
    try:
        expected, answer = read(gold), read(given)
    except UnreadableError:
        return False
    if _contradict(expected, answer):
        return False
    if expected.time and answer.time:
        return expected.time == answer.time
    if expected.modulus and answer.modulus and _same_residue(expected, answer):
        return True
    if expected.words or answer.words:
        return expected.text.lower() == answer.text.lower()
    if not expected.text or not answer.text:
        return False
    if expected.base or answer.base:
        return expected.text.lstrip("0") == answer.text.lstrip("0")
    pairs = _percentages(expected, answer)
    return any(wanted == other or _equal_texts(wanted, other) for wanted, other in pairs)


def matches_itself(label: str) -> bool:
    """Whether another spelling of the label could equal it: a copy needs no reading. Raises the parsers' errors."""
    answer = read(label)
    return bool(answer.words or answer.time or (answer.text and _equal_texts(answer.text, answer.text)))


def warm_up() -> None:
    """Initialize the parsers, before limits apply to the process."""
    equal(r"\frac{1}{2}", "0.5")


def _contradict(expected: Answer, answer: Answer) -> bool:
    """Whether what stands around two values differs: both have a unit, base or modulus, or one a percent sign or noon.

    Of times, 15:30 is 3:30 p.m., and no 3:30; 3:30 may be either half's.
    """
    parts = ((expected.unit, answer.unit), (expected.base, answer.base), (expected.modulus, answer.modulus))
    if any(first and other and first != other for first, other in parts):
        return True
    if any(
        one.percent > other.percent and other.unit and not one.unit
        for one, other in ((expected, answer), (answer, expected))
    ):
        return True
    halves = {expected.noon, answer.noon}
    if expected.time and answer.time:
        return len(halves) > 1 and halves not in ({"24", "p"}, {"", "a"}, {"", "p"})
    return halves != {""}


def _same_residue(expected: Answer, answer: Answer) -> bool:
    """Whether two numbers, perhaps behind a name, are equal modulo their modulus."""
    numbers = [each.text.rpartition("=")[2].strip() for each in (expected, answer)]
    if not all(re.fullmatch(r"-?\d{1,40}", number) for number in numbers) or int(expected.modulus[:40]) == 0:
        return False
    return (int(numbers[0]) - int(numbers[1])) % int(expected.modulus[:40]) == 0


def _percentages(gold: Answer, given: Answer) -> list[tuple[str, str]]:
    """The pairs of texts to compare: a percentage may equal its share, or its number if the other has no sign.

    A number below 1 without a sign is a share: 0.5 % is not 0.5.
    """
    share = _SHARE.fullmatch(gold.text if given.percent else given.text) if gold.percent != given.percent else None
    is_share = share is not None and (share[1] is None or int(share[1]) < int(share[2]))
    pairs = [] if is_share else [(gold.text, given.text)]
    if gold.percent and not given.percent:
        pairs.append((_hundredth(gold.text), given.text))
    if given.percent and not gold.percent:
        pairs.append((gold.text, _hundredth(given.text)))
    return pairs


def _hundredth(text: str) -> str:
    name, sign, value = text.rpartition("=")
    return rf"{name}{sign}\frac{{{value}}}{{100}}"


def _equal_texts(gold: str, given: str) -> bool:
    """Whether every claim of ``given`` equals ``gold``."""
    gold, given = (normalize_latex(_both_signs(_exact_side(text)), _SPELLING) for text in (gold, given))
    gold, given = _by_name(gold, given)
    if _are_unlike(gold, given):
        return False
    wanted, found = _entries(gold), _entries(given)
    if all(len(entries) > len({*entries}) and all(map(_INTEGER.fullmatch, entries)) for entries in (wanted, found)):
        return Counter(map(int, wanted)) == Counter(map(int, found))
    is_listed = not any(re.search(r"\\pm|[=;]", text) for text in (gold, given))
    if is_listed and len(wanted) != len(found) and min(len(wanted), len(found)) > 1:
        return False  # 1, 1, 2 is not 1, 2
    expected = _parse(gold)
    return all(_equal_expressions(expected, _parse(part), "," in part) for part in _claims(gold, given))


def _are_unlike(gold: str, given: str) -> bool:
    """Whether a text is a set or an interval, and the other what math-verify takes for the same: a point, the ends."""
    if gold.startswith(r"\{") != given.startswith(r"\{") and "(" in (gold[:1], given[:1]):
        return True
    if _is_pair(gold) and _is_pair(given) and _has_closed_end(gold) != _has_closed_end(given):
        return True  # [2,1] would be a point
    return any(
        _ORDER.search(one) and not _ORDER.search(other) and (other.startswith(r"\{") or len(_entries(other)) > 1)
        for one, other in ((gold, given), (given, gold))
    )


def _entries(text: str) -> list[str]:
    """The entries of a bare list; the text itself if it is none."""
    begins, depth = [0], 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            begins.append(place + 1)
    return [text[begin:end].rstrip(",").strip() for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]


def _by_name(gold: str, given: str) -> tuple[str, str]:
    """Values of named unknowns, x=3,y=4, as a point in the order of the names, beside a point or values of the same."""
    values = [_named_values(text) for text in (gold, given)]
    names = {tuple(sorted(named)) for named in values if named}
    has_others = any("=" in text and not named for text, named in zip((gold, given), values))
    if len(names) != 1 or has_others:
        return gold, given
    points = [
        ",".join(named[name] for name in sorted(named)) if named else text for text, named in zip((gold, given), values)
    ]
    first, other = (f"({text})" if len(_entries(text)) > 1 else text for text in points)
    return first, other


def _named_values(text: str) -> dict[str, str]:
    """The values of a list ``x=3,y=4`` by name; empty if the text is no list of two or more names."""
    found = [_NAMED.fullmatch(entry) for entry in _entries(text)]
    named = {match[1]: match[2].strip() for match in found if match}
    return named if len(named) == len(found) > 1 else {}


def _both_signs(text: str) -> str:
    r"""``\frac{1\pm\sqrt5}{2}`` as the list of both values."""
    place = text.find(r"\pm")
    inside = place > 0 and any(text[:place].count(a) > text[:place].count(b) for a, b in ("()", "{}", "[]"))
    if not inside or text.count(r"\pm") > 1 or r"\mp" in text or text.startswith(r"\{") or len(_entries(text)) > 1:
        return text
    name, sign, value = text.rpartition("=")
    return name + sign + ",".join(value.replace(r"\pm", each) for each in "+-")


def _is_pair(text: str) -> bool:
    """Whether the text is two entries, bare or within one pair of brackets."""
    text, depth, depths = text.strip(), 0, list[int]()
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        depths.append(depth)
    is_enclosed = text[:1] in ("(", "[") and 0 in depths and depths.index(0) == len(text) - 1
    return sum(at == is_enclosed for character, at in zip(text, depths) if character in ",;") == 1


def _has_closed_end(text: str) -> bool:
    return text.strip()[:1] == "[" or text.strip()[-1:] == "]"


def _exact_side(text: str) -> str:
    r"""The exact value of ``\frac{\pi}{4} \approx 0.785``, the value of ``x \approx 0.785``."""
    left, _, right = text.partition(r"\approx")
    return right if right and _is_name(left) and len(_sides(left)) == 1 else left


def _claims(gold: str, given: str) -> list[str]:
    """The expressions or equations that a chain of equalities claims; a leading name is not a claim."""
    parts = [given] if "," in given or ";" in given else _sides(given)
    if len(parts) == 1:
        return parts
    if len(_sides(gold)) > 1:
        return [f"{parts[0]}={part}" for part in parts[1:]]
    if _is_name(parts[-1]) and not _is_name(parts[0]):
        return parts[:-1]  # 3=x
    return parts[1:] if _is_name(parts[0]) else parts


def _sides(text: str) -> list[str]:
    """Split the text at its equals signs, except those within brackets."""
    begins, ends = [0], []
    for sign in _EQUALS.finditer(text):
        before = text[: sign.start()]
        if sum(map(before.count, "{([")) == sum(map(before.count, "})]")):
            ends.append(sign.start())
            begins.append(sign.end())
    return [text[begin:end] for begin, end in zip(begins, [*ends, len(text)], strict=True)]


def _is_name(text: str) -> bool:
    """Whether the text names the requested quantity: ``x``, ``f(2)``, ``a+b``; not ``2x`` and not a number."""
    return not _NO_NAME.match(text.strip()) and any(c.isalpha() for c in _NO_LETTERS.sub("", text))


@lru_cache(maxsize=1024)  # three quarters of a comparison; a label comes with every response, an answer in every vote
def _parse(text: str) -> Any:
    """Parse a whole LaTeX text as a sympy expression; the symbol i becomes the imaginary unit."""
    is_real = not should_treat_as_complex(text)
    expression = latex2sympy(text, is_real=is_real, convert_degrees=False, normalization_config=None)
    units = {symbol: I for symbol in expression.free_symbols if symbol.name == "i"}
    expression = expression.subs(units) if units else expression
    if expression.has(zoo, nan):
        raise UnreadableError(f"{text} is not defined")  # 1/0 equals nothing, not even 2/0
    return expression


def _equal_expressions(gold: Any, given: Any, several: bool) -> bool:
    """math-verify's verdict, but False if the label is a single value and the answer ``several``, or digits differ."""
    if several and isinstance(given, (Set, Tuple)) and isinstance(gold, Expr):
        return False
    if _exact(gold) == _exact(given):
        return True
    verdict = verify(gold, given, allow_set_relation_comp=True, timeout_seconds=None)
    return _digits_agree(gold, given) if verdict else _equal_in_digits(gold, given)


def _equal_in_digits(gold: Any, given: Any) -> bool:
    """Whether two exact numbers that are not both rational agree in 50 digits: sympy does not simplify every root."""
    sides = gold, given
    if not all(isinstance(side, Expr) and side.is_number and side.is_finite and not side.has(Float) for side in sides):
        return False
    if all(side.is_rational for side in sides):
        return False
    first, other = gold.evalf(60), given.evalf(60)
    return bool(first.is_number and other.is_number and abs(first - other) <= abs(first) * Rational(1, 10**50))


def _exact(expression: Any) -> Any:
    """A number with rational numbers for its decimals: 8.7 * 10**8 is 870000000, which floats miss by a bit."""
    floats = expression.atoms(Float) if getattr(expression, "is_number", False) else ()
    if not floats or any(not power.exp.is_Integer or abs(power.exp) > 1000 for power in expression.atoms(Pow)):
        return expression  # exact powers may take forever
    return expression.xreplace({number: Rational(str(number)) for number in floats})


def _digits_agree(gold: Any, given: Any) -> bool:
    """Whether two numbers, or corresponding numbers of two tuples, are equal; decimals in their first six digits."""
    if isinstance(gold, (Tuple, Interval)) and isinstance(given, type(gold)):
        return all(_digits_agree(entry, other) for entry, other in zip(gold.args, given.args, strict=True))
    if not (getattr(gold, "is_number", False) and getattr(given, "is_number", False)) or gold == given:
        return True
    if _is_zero(gold) or _is_zero(given):
        return _is_zero(gold) and _is_zero(given)
    tolerance = OF_DECIMALS if gold.has(Float) or given.has(Float) else OF_EXACT_VALUES
    return bool(abs((given / gold).evalf(30) - 1) <= tolerance)  # a ratio, of values as small as 1/365^30


def _is_zero(value: Any) -> bool:
    return bool(abs(value.evalf(30)) <= ZERO) if value.is_zero is None else bool(value.is_zero)
