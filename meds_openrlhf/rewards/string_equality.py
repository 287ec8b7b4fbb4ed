"""Compare two answers as strings, as DAPO's code does and the paper's after it; nothing is computed.

Both are first rewritten by the rules of Minerva's evaluation (Lewkowycz et al., 2022, appendix D.1), which drop
typesetting, units and thousands separators.
"""

from __future__ import annotations

import re

from meds_openrlhf.rewards.boxed import answer_of

# In the order of the rules: later ones see what earlier ones have left.
_REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
_REMOVED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *(
        "childrentickets",
        "multiples",
        "\\text{s}",
        "\\text{.}",
        "\\text{\ns}",
        "\\text{}^2",
        "\\text{}^3",
        "\\text{\n}",
    ),
    *("\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_REWRITTEN = (
    (r".*?\$(.*?)\$.*", r"\1"),
    (r"\\text\{(.*?)\}", r"\1"),
    (r"\\textbf\{(.*?)\}", r"\1"),
    (r"\\overline\{(.*?)\}", r"\1"),
    (r"\\boxed\{(.*)\}", r"\1"),
    (r"frac([^{])(.)", r"frac{\1}{\2}"),
    (r"sqrt([^{])", r"sqrt{\1}"),
)


def is_right(response: str, label: object) -> bool:
    """Whether the response's last boxed answer is ``label`` as a string, both normalized."""
    given = answer_of(response)
    return given is not None and normalized(given) == normalized(str(label))


def normalized(answer: str) -> str:
    """What is compared of an answer: the part behind its last equals sign, without what does not count."""
    text = answer.rpartition("=")[2]
    for old, new in _REPLACED:
        text = text.replace(old, new)
    for word in _REMOVED:
        text = text.replace(word, "")
    for pattern, new in _REWRITTEN:
        text = re.sub(pattern, new, text)
    text = text.replace("$", "")
    if text.replace(",", "").isdigit():
        text = text.replace(",", "")
    return text.strip()
