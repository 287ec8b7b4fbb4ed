"""Convert a problem's answer, in any of the data sets' forms, to a string."""

from __future__ import annotations

import math
import re
from typing import Any

_WHOLE_NUMBER = re.compile(r"([+-]?\d+)\.0*")
_DOLLAR = re.compile(r"(?<!\\)\$")


def answer_text(value: Any) -> str | None:
    """Turn ``33``, ``33.0`` and ``"$33$"`` into ``"33"``, ``["1", "2"]`` into ``"1, 2"``; None if there is no answer.

    Removes the decimal point of whole numbers, and the dollar signs around formulas, which a response puts into
    ``\\boxed{}``. Everything else stays. Raises TypeError if ``value`` is not an answer, e.g. a record.
    """
    if isinstance(value, list):
        parts = [answer_text(part) for part in value]
        return ", ".join(part for part in parts if part is not None) or None
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{value!r:.80} is not a text, a number or a list of them")
    text = _DOLLAR.sub("", str(value)).strip()
    whole = _WHOLE_NUMBER.fullmatch(text)
    return (whole[1] if whole else text) or None
