"""Write an answer's characters as plain LaTeX and remove its typesetting, by tables of unambiguous substitutions."""

from __future__ import annotations

import math
import re
import unicodedata
from itertools import groupby

_CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty "}
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap "}
    | {"∈": r"\in ", "∅": r"\emptyset ", "∶": ":", "。": ".", "、": ",", "或": ",", "°": r"^\circ ", "µ": "μ", "Ω": "Ω"}
    | {"—": "-", "‐": "-", "•": r"\cdot ", "⁄": "/", "⩽": r"\le ", "⩾": r"\ge ", "∠": r"\angle ", "︰": ":", "和": ","}
    | {"º": r"^\circ ", "˚": r"^\circ ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil "}
    | {"∑": r"\sum ", "$": "", "€": "", "£": "", "¥": "", "￥": "", "\n": " ", "\t": " ", "\xa0": " "}
)
_END = re.compile(r"(?:[,; ]|(?<!\.)\.)+$")
_ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[a-zA-Z]|\([^()]*\)|\{[^{}]*\})")
_DEGREES = {"√": "", "∛": "[3]", "∜": "[4]"}

_LARGE = {"million": 6, "billion": 9, "trillion": 12}
_SUBSCRIPTED_LETTERS = {"E": "Xi", "e": "xi", "I": "Upsilon"}

# Typesetting, in this order: what a pattern finds, and what takes its place.
_TYPESETTING = [(re.compile(pattern), by) for pattern, by in (
    (r"^\s*(\*{1,2})([^*]+)\1\s*$", r"\2"),  # Markdown
    (r"\\(?:pounds|yen|euro|textdollar|tiny|small|normalsize|large|Large|LARGE|huge|Huge)(?![a-zA-Z])", ""),
    (r"\\(?:tag|label)\s*\{[^{}]*\}", ""),
    (r"(?<=\d),\s*\\!\s*(?=\d{3})", "{,}"),  # as MATH writes thousands
    (r"\\(?:text)?color(?:box)?\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}", ""),
    (r"\\(?:boldsymbol|bm|pmb|underline|(?:display|text|script|scriptscript)style|limits|[bB]igg?[lrm]?|(?:left|right)\.?)"
     r"(?![a-zA-Z])|\\!", ""),
    (r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)|math(?:rm|bf|it|sf|tt)|operatorname\*?|[fmh]box|emph|rm|bf|it)(?=\s*\{)",
     r"\\text"),
    (r"\{\s*\\(?:rm|bf|it|sf|tt)\s+([^{}]*)\}", r"\\text{\1}"),
    (r"\\(?:math)?(?:rm|bf|it)\s+(?=\d)", ""),
    (r"\\text\s*\{\s*\\text\s*(\{[^{}]*\})\s*\}", r"\\text\1"),
    (r"\\text\s*\{\s*([ei])\s*\}", r"\1"),  # upright e and i
    (r"\\text\s*\{\s*((?:arc)?(?:sin|cos|tan|cot|sec|csc|c?tg)h?|ln|log|lg|exp|gcd|lcm|det)\s*\}", r"\\\1 "),
    (r"^\s*\\text\s*\{\s*([+-]?\d[\d.,:/]*)\s*([^{}]*)\}(?!\s*_)", r"\1 \\text{ \2}"),  # a number in a text
    (r"\\(arc)?(c?)tg(?![a-zA-Z])", lambda found: rf"\{found[1] or ''}{'cot' if found[2] else 'tan'} "),
    (r"\\lg(?![a-zA-Z])", r"\\log_{10} "),
    (r"(?i)^\s*(?:\\text\s*\{)?\s*(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:?\s*\}?\s*([-+]?[\d.,/]+)\s*\}?\s*$",
     r"\1"),
    (r"(?<=\d)\s*(\\text\s*\{)?\s*(million|billion|trillion)\b\s*",
     lambda found: rf"\cdot 10^{{{_LARGE[found[2]]}}}{found[1] or ' '}"),
    (r"\\text\s*\{\s*([,;])\s*\}", r"\1"),
    (r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}", r"\\binom{\1}{\2}"),
    (r"\\text\s*\{\s*\}", ""),
    (r"(?<!\\)\\(?:[,;: ]|(?:q?quad|enspace|(?:thin|med|thick)space)(?![a-zA-Z])|hspace\s*\{[^{}]*\})|~|\s+", " "),
    (r"(\d\s*)[(\[{]\s*(\\text\s*\{[^{}]*\}(?:\^\{?-?\d\}?)?)\s*[)\]}]\s*$", r"\1\2"),  # 7 (cm)
    (r"\\(?:[dtc]frac|sfrac|nicefrac)(?![a-zA-Z])", r"\\frac"),
    (r"\\frac\s*(\\[a-zA-Z]+|\w)\s*(\\[a-zA-Z]+|\w|\{[^{}]*\})", r"\\frac{\1}{\2}"),
    (r"\}\s*/\s*\\text\s*\{", "/"),  # the unit \text{m}/\text{s}
    (r"(?<![a-zA-Z\\])([EeI])_(?:\{(\w+)\}|(\w))",
     lambda found: rf"\{_SUBSCRIPTED_LETTERS[found[1]]}_{{{found[2] or found[3]}}}"),  # not Euler's number, nor i
    (r"((?<![a-zA-Z])[a-zA-Z]|\\[a-zA-Z]+)('+)(?![a-z])", lambda found: f"{found[1]}_{{{'p' * len(found[2])}}}"),
    (r"\\\\\s*\[[^\]]*\]|\\cr(?![a-zA-Z])", r"\\\\"),
    (r"^\s*(?:\\\{\s*)?\\begin\{(aligned|gathered|align\*?|cases|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}\s*$",
     lambda found: _system(found)),
    (r"\{smallmatrix\}", "{matrix}"),
    (r"\(\s*\\begin\{matrix\}(.*?)\\end\{matrix\}\s*\)", r"\\begin{pmatrix}\1\\end{pmatrix}"),
    (r"\\big(cup|cap)(?![a-zA-Z])", r"\\\1"),
    (r"\\equiv(?![a-zA-Z])", "="), (r"\*\*", "^"), (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
    (r"\\[lr]angle(?![a-zA-Z])", lambda found: "(" if "l" in found[0][:2] else ")"),
    (r"(?<=\d)\s*[x*]\s*10\s*\^", r"\\times 10^"),
    (r"\^\s*(-\d+)", r"^{\1}"),
    (r"\\binom\s*(\d)\s*(\d)", r"\\binom{\1}{\2}"),
    (r"\\sqrt\s*(\[\d+\])\s*(\d)", r"\\sqrt\1{\2}"),
    (r"\\([lg])eqq(?![a-zA-Z])", r"\\\1e "), (r"\\not\s*=", r"\\ne "),
    (r"\\(overline|bar|dot)\s*(\d)", r"\\\1{\2}"),
    (r"\\(overline|bar)\s*\{(\d+)\}\s*\\\1\s*\{(\d+)\}", r"\\overline{\2\3}"),
    (r"(?<![\\a-zA-Z])(pi|exp)(?![a-zA-Z])", r"\\\1 "),
    (r"\\sqrt\[(\d*[13579])\]\{\s*-", r"-\\sqrt[\1]{"),  # the real root
    (r"(?<![a-zA-Z])C_\{?([a-z]|\d+)\}?\^\{?([a-z]|\d+)\}?|(?<![a-zA-Z])C\((\d+),\s*(\d+)\)",
     lambda found: rf"\binom{{{found[1] or found[3]}}}{{{found[2] or found[4]}}}"),
    (r"^\s*\\(gcd|lcm)\s*\(\s*(\d{1,20})\s*,\s*(\d{1,20})\s*\)\s*$",
     lambda found: str(getattr(math, found[1])(int(found[2]), int(found[3])))),
    (r"^\s*(-?\d{1,20})\s*\\bmod\s*\{?\s*([1-9]\d{0,19})\s*\}?\s*$",
     lambda found: rf"{int(found[1]) % int(found[2])}\pmod{{{found[2]}}}"),
    (r"\\dot\s*\{(\d)\}(\d*)\\dot\s*\{(\d)\}", r"\\overline{\1\2\3}"),
    (r"\\mathbb\s+([A-Z])", r"\\mathbb{\1}"),
    (r"_\s*\{?\s*\\(max|min)(?![a-zA-Z])\s*\}?", r"_{\1}"),
    (r"^\s*(?:\\(?:approx|simeq|therefore)(?![a-zA-Z])|=)", ""),
)]  # fmt: skip


def in_plain_latex(text: str) -> str:
    """Write characters as LaTeX, and remove math delimiters and typesetting."""
    text = (
        _ROOT.sub(lambda found: rf"\sqrt{_DEGREES[found[1]]}{{{found[2]}}}", _in_latex(text))
        .replace(r"\$", "")
        .translate(_CHARACTERS)
    )
    for pattern, by in _TYPESETTING:
        text = pattern.sub(by, text)
    text = _END.sub("", text.strip())
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]"), (r"\boxed{", "}"), ("{", "}")):
        inner = text[len(opening) : -len(closing)]
        if (
            text.startswith(opening)
            and text.endswith(closing)
            and inner.count("{") == inner.count("}")
            and "}" not in inner[: inner.find("{")]
        ):
            text = inner
    return _END.sub("", text.strip(" "))


def _in_latex(text: str) -> str:
    """Replace raised, lowered and full-width characters, fractions and digits; 10⁶ is not 106, and 1½ is not 11/2."""
    parts = []
    for form, run in groupby(text, lambda c: unicodedata.decomposition(c).partition(" ")[0]):
        same = "".join(run)
        plain = unicodedata.normalize("NFKC", same)
        if form in ("<super>", "<sub>"):
            parts.append(f"{'^' if form == '<super>' else '_'}{{{plain}}}".replace("−", "-"))
        elif form == "<fraction>":
            parts += [
                rf"\frac{{{top}}}{{{bottom}}}"
                for top, _, bottom in (unicodedata.normalize("NFKC", c).partition("⁄") for c in same)
            ]
        elif form in ("<wide>", "<narrow>", "<small>"):
            parts.append(plain)
        else:
            parts.append("".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in same))
    return "".join(parts)


def _system(found: re.Match[str]) -> str:
    """The equations of a system as a list; what has cells, a matrix or cases, stays."""
    lines = [line.strip() for line in found[2].split(r"\\") if line.strip()]
    has_others = len(lines) > 1 and not all("=" in line for line in lines)
    if has_others or any(line.count("&") > 1 for line in lines):
        return found[0]
    return ", ".join(line.replace("&", "") for line in lines)
