"""Answers as texts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.data.answers import answer_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(33, "33"), (27.0, "27"), (0.5, "0.5"), ("25.0", "25"), ("-3.", "-3"), ("0.50", "0.50"), ("025", "025")],
        *[(" $\\frac{1}{2}$ ", "\\frac{1}{2}"), ("\\$18", "\\$18"), ("$5$ cm", "5 cm")],
        *[(["$2$"], "2"), (["1", 2.0], "1, 2")],
        *[(nothing, None) for nothing in ("", "  ", "$$", None, [], [None], float("nan"))],
    ],
)
def test_an_answer_becomes_a_text(value: Any, text: str | None) -> None:
    assert answer_text(value) == text


@pytest.mark.parametrize("value", [True, {"value": 1}, b"1", [{"value": 1}]])
def test_what_is_no_answer_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="is not a text, a number or a list"):
        answer_text(value)


@given(st.integers())
def test_a_whole_number_is_one_text_whatever_its_type(number: int) -> None:
    assert answer_text(number) == answer_text(f"{number}.00") == answer_text(f"${number}$") == str(number)


@given(st.text())
def test_a_text_is_cleaned_once_and_for_all(text: str) -> None:
    cleaned = answer_text(text)
    assert answer_text(cleaned) == cleaned
