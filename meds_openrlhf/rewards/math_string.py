r"""``meds.reward: math-string``: 1 if the last boxed answer is the label as a normalized string, 0 otherwise.

Nothing is computed, as in the reference code. Both strings are first rewritten by the rules of Hendrycks et al.,
"Measuring Mathematical Problem Solving With the MATH Dataset" (2021), which unify typesetting and drop units behind
``\text{ ``. OpenRLHF loads this file by its path and calls `reward_func` in a thread per response.
"""

from __future__ import annotations

import re
from typing import Any

from meds_openrlhf.rewards import grading
from meds_openrlhf.rewards.grading import answer_of, label_text

# Both in this order: later rules see what earlier ones have left.
_FIRST = (
    *(("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""), ("\\right", "")),
    *(("^{\\circ}", ""), ("^\\circ", ""), ("\\$", "")),
)
_AFTER_UNITS = (("\\%", ""), (" .", " 0."), ("{.", "{0."))
_UNIT = "\\text{ "
_QUOTIENT = re.compile(r"(-?\d+)/(-?\d+)")


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """OpenRLHF's reward function: ``queries`` are prompts with their responses; rewards and scores are (B,) float32."""
    return grading.scored(queries, prompts, labels, is_right)


def is_right(response: str, label: object) -> bool:
    """Whether the response's last boxed answer is ``label`` as a string, both normalized."""
    given, gold = answer_of(response), label_text(label)
    if given is None or gold is None:
        return False
    if max(given.count(_UNIT), gold.count(_UNIT)) > 1:  # the rules know one unit at most, and are not applied then
        return given == gold
    return normalized(given) == normalized(gold)


def normalized(answer: str) -> str:
    """Return the form of an answer that is compared."""
    text = answer
    for old, new in _FIRST:
        text = text.replace(old, new)
    text = text.partition(_UNIT)[0]
    for old, new in _AFTER_UNITS:
        text = text.replace(old, new)
    if text.startswith("."):
        text = "0" + text
    name, _, value = text.partition("=")
    if value and "=" not in value and len(name) <= 2:
        text = value
    text = re.sub(r"sqrt([^{])", r"sqrt{\1}", text).replace(" ", "")
    text = re.sub(r"\\frac([^{])\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\frac([^{])([^{])", r"\\frac{\1}{\2}", text)
    if text == "0.5":
        return "\\frac{1}{2}"
    quotient = _QUOTIENT.fullmatch(text)
    return f"\\frac{{{quotient[1]}}}{{{quotient[2]}}}" if quotient else text
