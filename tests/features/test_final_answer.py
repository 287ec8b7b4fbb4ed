"""Final answers as rows: equal ones alike, others not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.features.final_answer import VALUES, answer_row, same_answer_form


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("7", " 7.0 "), ("1,000", "1000"), ("1{,}000", "1000"), ("1/2", "0.5"), (".5", "0.50"), ("$x+1$.", "x + 1")],
        *[("\\dfrac{1}{2}", "\\frac{1}{2}"), ("1/2", "\\frac12"), ("-3/4", "\\frac{-3}{4}"), ("2/4", "0.5")],
        *[("1 1/2", "1\\frac{1}{2}"), ("-1\\tfrac12", "-1.5"), ("1 000", "1000")],
        ("\\left( 1, 2 \\right)", "(1,2)"),
    ],
)
def test_spellings_of_one_answer_and_different_answers(one: str, other: str) -> None:
    assert same_answer_form(one) == same_answer_form(other)
    assert np.array_equal(answer_row(one), answer_row(other))
    for one, other in (
        ("7", "-7"),
        ("12", "1,2"),
        ("0.5", "0.05"),
        ("1/0", "0"),
        ("1 1/2", "11/2"),
        ("1/2", "-1/2"),
        ("x", "X"),
        ("x+1", "1+x"),
    ):
        assert not np.array_equal(answer_row(one), answer_row(other))


@pytest.mark.parametrize("length", [40, 4_300, 5_700, 16_384])
def test_numbers_of_any_length_are_answers(length: int) -> None:
    """Python converts no number of more than 4,300 digits, and a policy that loops writes longer ones."""
    zeros = length * "0"
    numbers = [f"1{zeros}", f"1{',000' * (length // 4)}", f"-1.{zeros}", f"0.{zeros}1", f".{zeros}"]
    numbers += [f"1{{,}}{zeros[:3]}" + "{,}000" * (length // 6), f"{zeros},{zeros}"]
    assert len({same_answer_form(number) for number in numbers}) == len(numbers)
    assert same_answer_form("1" + 13 * ",000") == "1" + 39 * "0"
    assert all(np.isfinite(answer_row(number)).all() for number in numbers)


@given(st.text("0123456789,.+-e{} ", max_size=200), st.integers(1, 60))
def test_no_text_of_digits_is_an_error(text: str, times: int) -> None:
    assert answer_row(text * times).shape == (VALUES,)


@given(st.text())
def test_any_text_has_a_row_of_whole_numbers_that_float32_holds_exactly(text: str) -> None:
    row = answer_row(text)
    assert (row.dtype, row.shape) == (np.float32, (VALUES,))
    assert ((row >= 0) & (row < 2**24) & (row == np.floor(row))).all()


def test_rows_use_the_range_and_differ() -> None:
    rows = np.array([answer_row(str(number)) for number in range(200)])
    assert (rows.max(axis=0) > 2**23).all()
    assert len(np.unique(rows[:, 0])) == len(np.unique(rows[:, 1])) == 200
