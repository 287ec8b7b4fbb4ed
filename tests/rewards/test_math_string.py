"""The verdict of the paper's code, and where it disagrees with that of math-verify."""

import re
from pathlib import Path

import pytest

from meds_openrlhf.rewards.math_string import is_right, normalized

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        *[("x = 7", "7"), ("xyz = 7", "xyz=7"), ("x = y = 7", "x=y=7")],  # one short name is left out
        *[("1, 2", "1,2"), ("1,234", "1,234"), (r"\left( 1,\!000 \right)", "(1,000)")],
        *[(r"5\text{ cm}", "5"), (r"50\%", "50"), (r"90^\circ", "90"), (r"\$5", "5")],
        *[(r"\frac12", r"\frac{1}{2}"), (r"\frac1{72}", r"\frac{1}{72}"), (r"\dfrac{1}{2}", r"\frac{1}{2}")],
        *[("3/4", r"\frac{3}{4}"), ("a/4", "a/4"), ("0.5", r"\frac{1}{2}"), (".5 + .25", "0.5+0.25")],
        (r"\sqrt2", r"\sqrt{2}"),
    ],
)
def test_normalized(answer: str, expected: str) -> None:
    assert normalized(answer) == expected


def test_the_last_box_counts_and_an_empty_one_is_wrong() -> None:
    assert is_right("\\boxed{8} no, \\boxed{7}", 7)
    for text, label in (("\\boxed{7} no, \\boxed{8}", 7), ("\\boxed{}", ""), ("7", 7)):
        assert not is_right(text, label)
    units = r"5\text{ feet }6\text{ inches}"  # more than one unit is compared as it is
    assert is_right(f"\\boxed{{{units}}}", units)
    assert not is_right(r"\boxed{5\text{ feet}}", units)


def test_the_documentation_shows_disagreements() -> None:
    table = re.findall(r"^\| `(.+?)` \|(.*?)\|(.*?)\|$", DOCUMENTATION.partition("## As strings")[2], re.MULTILINE)
    assert len(table) == 7
    for label, *answers in table:
        by_math, by_string = ([f"\\boxed{{{answer}}}" for answer in re.findall("`(.+?)`", cell)] for cell in answers)
        assert all(is_right(answer, label) for answer in by_string)
        assert not any(is_right(answer, label) for answer in by_math)
