"""The files that OpenRLHF loads, what they take for the answer, and the verdict of the paper's code."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from meds_openrlhf.rewards import grading, math_string
from meds_openrlhf.rewards.grading import answer_of, is_right

FILES = Path(grading.__file__).parent
PROMPT = "Put it in \\boxed{7}. "
RESPONSES = ["no idea", "\\boxed{7}", "\\boxed{8}", "\\boxed{7", "\\boxed{}", "\\boxed{8} or \\boxed{7.0}"]
RIGHT = [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def loaded(name: str) -> Any:
    """The file, as OpenRLHF loads it."""
    spec = importlib.util.spec_from_file_location("reward_func", FILES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_derivation_in_a_box_is_an_answer_but_not_right() -> None:
    text = "\\boxed{" + "7+" * 127 + "7" + "}"
    assert is_right(text, answer_of(text)) is True
    longer = text.replace("7+", "70+", 2)
    assert len(answer_of(longer)) == 257
    assert is_right(longer, answer_of(longer)) is False


@pytest.mark.parametrize("text", ["\\boxed{" + "{" * 10**6, "\\boxed{" * 10**5, "\\boxed{" + "9" * 10**6 + "}"])
def test_a_megabyte_is_wrong_without_a_comparison(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "_verifier", None)  # nobody is asked
    assert is_right(text, "7") is False


@pytest.mark.parametrize(
    ("name", "rewards"),
    [
        ("math", RIGHT),
        ("math_signed", [-1.0, 1.0, -1.0, -1.0, -1.0, 1.0]),
        ("math_format", [0.0, 1.0, 0.1, 0.0, 0.0, 1.0]),
        ("math_string", [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]),  # 7.0 is another string
    ],
)
def test_rewards_and_scores(name: str, rewards: list[float]) -> None:
    prompts = [PROMPT] * len(RESPONSES)
    queries = [f"{PROMPT}{response}" for response in RESPONSES]
    result = loaded(name).reward_func(queries, prompts, ["7"] * len(RESPONSES))
    assert set(result) == {"rewards", "scores", "extra_logs"}
    assert result["extra_logs"]["undecided"].tolist() == [0.0] * len(RESPONSES)
    torch.testing.assert_close(result["rewards"], torch.tensor(rewards))
    torch.testing.assert_close(result["scores"], torch.tensor(rewards if name == "math_string" else RIGHT))
    if name != "math_string":
        assert loaded(name).grading.equal is grading.equal  # one pool for all files


def test_what_cannot_be_decided_is_wrong_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "equal", lambda gold, given: None)
    result = loaded("math_signed").reward_func([f"{PROMPT}{RESPONSES[1]}", f"{PROMPT}no idea"], [PROMPT] * 2, ["7"] * 2)
    assert result["rewards"].tolist() == [-1.0, -1.0]
    assert result["extra_logs"]["undecided"].tolist() == [1.0, 0.0]
    assert grading.verdict(RESPONSES[1], "7") == ("7", False)


@pytest.mark.parametrize("before", ["", "<s>"])
def test_only_the_response_counts(before: str) -> None:
    assert grading.responses([f"{before}{PROMPT}so {PROMPT}"], [PROMPT]) == [f"so {PROMPT}"]
    assert grading.scores([f"{before}{PROMPT}no idea"], [PROMPT], ["7"]).tolist() == [0.0]
    with pytest.raises(ValueError, match="shorter"):
        grading.scores(["a", "b"], ["a"], ["7", "7"])


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
    assert math_string.normalized(answer) == expected


def test_the_last_box_counts_and_an_empty_one_is_wrong() -> None:
    assert math_string.is_right("\\boxed{8} no, \\boxed{7}", 7)
    for text, label in (("\\boxed{7} no, \\boxed{8}", 7), ("\\boxed{}", ""), ("7", 7)):
        assert not math_string.is_right(text, label)
    units = r"5\text{ feet }6\text{ inches}"  # more than one unit is compared as it is
    assert math_string.is_right(f"\\boxed{{{units}}}", units)
    assert not math_string.is_right(r"\boxed{5\text{ feet}}", units)


def test_the_documentation_shows_disagreements() -> None:
    table = re.findall(r"^\| `(.+?)` \|(.*?)\|(.*?)\|$", DOCUMENTATION.partition("## As strings")[2], re.MULTILINE)
    assert len(table) == 7
    for label, *answers in table:
        by_math, by_string = ([f"\\boxed{{{answer}}}" for answer in re.findall("`(.+?)`", cell)] for cell in answers)
        assert all(math_string.is_right(answer, label) for answer in by_string)
        assert not any(math_string.is_right(answer, label) for answer in by_math)
