"""The answer of a problem as one text, whatever its set keeps it as."""

from __future__ import annotations

import math
import re
from typing import Any

_WHOLE_NUMBER = re.compile(r"([+-]?\d+)\.0*")
_DOLLAR = re.compile(r"(?<!\\)\$")


def answer_text(value: Any) -> str | None:
    """``33``, ``33.0`` and ``"$33$"`` to ``"33"``, ``["1", "2"]`` to ``"1, 2"``; None where there is no answer.

    Whole numbers lose their decimal point, and texts the dollar signs around their formulas, which stand within
    ``\\boxed{}`` in a response. Everything else stays. Raises TypeError for what is no answer, such as a record.
    """
    if isinstance(value, list):
        parts = [answer_text(part) for part in value]
        return ", ".join(part for part in parts if part is not None) or None
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{value!r:.80} is no text, number or list of them")
    text = _DOLLAR.sub("", str(value)).strip()
    whole = _WHOLE_NUMBER.fullmatch(text)
    return (whole[1] if whole else text) or None
