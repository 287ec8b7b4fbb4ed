"""Reading JSON that others wrote."""

from __future__ import annotations

import json
from typing import Any

MOST_DIGITS = 40  # of an integer: Python converts no more than 4,300, and a float holds no more than 308


def parse_json(text: str | bytes, **options: Any) -> Any:
    """``json.loads``, which raises JSONDecodeError for all that Python cannot hold or use.

    That is nesting beyond its recursion limit, and integers of more than `MOST_DIGITS` digits.
    """
    try:
        return json.loads(text, **{"parse_int": _integer, **options})
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise json.JSONDecodeError(f"an integer of {len(digits)} digits", "", 0)
    return int(digits)
