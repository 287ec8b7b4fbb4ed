"""Reading JSON that others wrote."""

from __future__ import annotations

import json
from typing import Any

MOST_DIGITS = 40  # of an integer: Python converts no more than 4,300, and a float holds no more than 308
MOST_DEPTH = 100  # of nested lists and objects: code that walks a value recursively has room for each


def parse_json(text: str | bytes, **options: Any) -> Any:
    """``json.loads``, which raises ValueError, mostly JSONDecodeError, for all that Python cannot hold or use.

    That is more than `MOST_DEPTH` levels, and integers of more than `MOST_DIGITS` digits.
    """
    try:
        value = json.loads(text, **{"parse_int": _integer, **options})
    except RecursionError:
        value = text
    if value is text or _is_deeper(value, MOST_DEPTH):
        raise json.JSONDecodeError("nested too deeply", "", 0)
    return value


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise json.JSONDecodeError(f"an integer of {len(digits)} digits", "", 0)
    return int(digits)


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        level = [item for items in inner for item in items]
        if not level:
            return False
    return True
