"""The table of verdicts, through the reward's own way to them."""

import unicodedata
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.rewards import comparison, grading, math_string
from meds_openrlhf.rewards.grading import LONGEST_VALUE, is_right
from meds_openrlhf.runtime.verifier import AnswerVerifier
from tests.rewards.verdicts import HOSTILE, LIMITS, VERDICTS

ROWS = [*VERDICTS, *LIMITS]


@pytest.mark.parametrize(
    ("answer", "label", "right"), ROWS, ids=[f"{label!a}: {answer!a}" for answer, label, _ in ROWS]
)
def test_verdict(answer: str, label: str, right: bool) -> None:
    assert is_right(f"I think \\boxed{{{answer}}}.", label) is right


def test_every_label_is_right_as_an_answer_also_a_number() -> None:
    assert all(is_right(f"\\boxed{{{label}}}", label) for _, label, _ in ROWS)
    assert is_right("\\boxed{33}", 33) is True
    assert is_right("\\boxed{2.50}", 2.5) is True


@given(
    top=st.integers(1, 9),
    other=st.integers(1, 9),
    base=st.integers(2, 9),
    size=st.integers(1, 900),
    step=st.integers(0, 3),
)
def test_exact_values_are_equal_only_if_they_are(top: int, other: int, base: int, size: int, step: int) -> None:
    gold, given = rf"\frac{{{top}}}{{{base}^{{{size}}}}}", rf"\frac{{{other}}}{{{base}^{{{size + step}}}}}"
    assert comparison.equal(gold, given) == (Fraction(top, base**size) == Fraction(other, base ** (size + step)))


@given(first=st.tuples(st.integers(0, 23), st.integers(0, 59)), other=st.tuples(st.integers(0, 23), st.integers(0, 59)))
def test_times_are_equal_only_if_they_are(first: tuple[int, int], other: tuple[int, int]) -> None:
    gold, given = (f"{hour}:{minute:02}" for hour, minute in (first, other))
    assert comparison.equal(gold, given) == (first == other)


@given(number=st.text("0123456789", min_size=1, max_size=4), raised=st.text("⁰¹²³⁴⁵⁶⁷⁸⁹", min_size=1, max_size=2))
def test_strings_that_are_equal_only_in_compatible_characters_are_not(number: str, raised: str) -> None:
    digits = unicodedata.normalize("NFKC", raised)
    wanted = int(number) ** int(digits) == int(number + digits)
    assert comparison.equal(number + digits, number + raised) == wanted


@pytest.mark.parametrize("label", [None, "", "  ", float("nan"), [], {}])
def test_a_missing_label_equals_nothing(label: object) -> None:
    for answer in ("None", "", "nan", "[]", "{}", "7"):
        assert is_right(f"\\boxed{{{answer}}}", label) is False
        assert math_string.is_right(f"\\boxed{{{answer}}}", label) is False


def test_hostile_answers_are_wrong_and_the_next_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        grading,
        "_verifier",
        AnswerVerifier("meds_openrlhf.rewards.comparison", "math_verify", seconds=1.0, processes=2),
    )
    with ThreadPoolExecutor(8) as threads:
        verdicts = dict(zip(HOSTILE, threads.map(lambda text: is_right(f"\\boxed{{{text}}}", "7"), HOSTILE.values())))
    assert verdicts == dict.fromkeys(HOSTILE, False)
    assert is_right("\\boxed{\\frac{14}{2}}", "7") is True


def test_nothing_in_an_answer_is_executed(tmp_path: Path) -> None:
    touched = tmp_path / "x"
    code = f"__import__('os').system('touch {touched}')"
    assert len(code) + 20 < LONGEST_VALUE
    texts = (code, f"1 + {code}", f"\\text{{{code}}}", f"$({code})$", f"7 {code}", f"${{{code}}}", f"; touch {touched}")
    for text in texts:
        assert is_right(f"\\boxed{{{text}}}", "7") is False
        assert is_right("\\boxed{7}", text) is False
    assert not touched.exists()
