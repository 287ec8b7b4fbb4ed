"""Which requests are retried, and after how long."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

LONGEST_BACKOFF = 60.0
LONGEST_REQUESTED = 600.0  # a longer requested pause, e.g. for a used-up daily quota, ends the script


def is_worth_repeating(status: int) -> bool:
    """Whether the same request may succeed later: after timeouts, conflicts, rate limits, and server errors."""
    return status in (408, 409, 429) or status >= 500


def backoff(failures: int, base: float) -> float:
    """Seconds to wait after ``failures`` (from 1), doubled each time, with jitter to spread concurrent retries."""
    return float(min(LONGEST_BACKOFF, base * 2 ** (failures - 1)) * random.uniform(0.5, 1.0))


def requested_pause(headers: Mapping[str, str], now: datetime | None = None) -> float:
    """The pause that the server requests (``Retry-After``, seconds or a date), in seconds; 0 if it requests none."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
        return 0.0 if math.isnan(seconds) else max(seconds, 0.0)
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if until.tzinfo is None:
        until = until.replace(tzinfo=timezone.utc)
    return max((until - (now or datetime.now(timezone.utc))).total_seconds(), 0.0)
