"""What is sent again, and when."""

from datetime import datetime, timezone

import pytest

from analysis.judge.retries import backoff, is_worth_repeating, requested_pause


def test_what_may_pass_is_repeated() -> None:
    statuses = (200, 302, 400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 503, 529)
    assert [status for status in statuses if is_worth_repeating(status)] == [408, 409, 429, 500, 503, 529]


def test_pauses_double_up_to_a_minute() -> None:
    for failures, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (20, 60.0)):
        pauses = [backoff(failures, 0.5) for _ in range(50)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("nan", 0.0),
        ("soon", 0.0),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float) -> None:
    now = datetime(2026, 11, 21, 12, 0, 0, tzinfo=timezone.utc)
    assert requested_pause({"retry-after": value}, now) == seconds


def test_no_retry_after_is_no_pause() -> None:
    assert requested_pause({}) == 0.0
