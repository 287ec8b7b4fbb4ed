"""Reading JSON that others wrote."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes, **options: Any) -> Any:
    """``json.loads``, which raises JSONDecodeError also for nesting beyond Python's recursion limit."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None
