"""The verdict of the paper's code, and where it disagrees with that of math-verify."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from meds_openrlhf.rewards.string_equality import is_right, normalized
from tests.rewards.test_math import PROMPT, RESPONSES, loaded
from tests.rewards.verdicts import LIMITS, VERDICTS

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("x = 7", "7"),
        ("$1,234$.", "1234"),
        ("1,2", "12"),  # a list of digits is read as one number
        ("(1, 2)", "(1,2)"),
        ("5 cm", "5"),
        (r"5\text{ cm}", "5"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\sqrt2", r"\sqrt{2}"),
        (r"90^\circ", "90"),
        (r"\text{(A)}", "(A)"),
        (r"\mbox{east}", "east"),
        (r"an \$5", "5"),
        (r"x\text{ and }y", "x,y"),
    ],
)
def test_normalized(answer: str, expected: str) -> None:
    assert normalized(answer) == expected


def test_the_last_box_counts_and_an_empty_one_is_wrong() -> None:
    assert is_right("\\boxed{8} no, \\boxed{7}", 7)
    assert not is_right("\\boxed{7} no, \\boxed{8}", "7")
    assert not is_right("\\boxed{}", "")
    assert not is_right("7", "7")


def test_the_reward_of_strings() -> None:
    found = loaded("math_string").reward_func([PROMPT + text for text in RESPONSES], [PROMPT] * 6, ["7"] * 6)
    assert found["scores"].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]  # 7.0 is another string
    assert torch.equal(found["rewards"], found["scores"])


def test_the_documentation_counts_the_disagreements() -> None:
    rows = [row for group in [*VERDICTS.values(), LIMITS] for row in group]
    found = Counter((right, is_right(f"\\boxed{{{answer}}}", label)) for answer, label, right in rows)
    counts = re.search(r"Of the (\d+) pairs .*?(\d+) are right by `math` alone and (\d+) by", DOCUMENTATION, re.DOTALL)
    assert counts is not None
    assert [int(count) for count in counts.groups()] == [len(rows), found[True, False], found[False, True]]
    table = re.findall(r"^\| `(.+?)` \|(.*?)\|(.*?)\|$", DOCUMENTATION.partition("## As strings")[2], re.MULTILINE)
    assert len(table) == 7
    for label, *answers in table:
        by_math, by_string = ([f"\\boxed{{{answer}}}" for answer in re.findall("`(.+?)`", cell)] for cell in answers)
        assert all(is_right(answer, label) for answer in by_string)
        assert not any(is_right(answer, label) for answer in by_math)
