"""Verdicts of the math reward."""

import time

import pytest
import torch

from meds_openrlhf.rewards import math
from meds_openrlhf.rewards.math import is_right, last_boxed, reward_func
from meds_openrlhf.rewards.verifier import AnswerVerifier


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{7}", "7"),
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{}", ""),
        ("\\boxed{7", None),
        ("no box", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("answer", "label", "right"),
    [
        ("7", "7", True),
        (" 7 ", "7", True),
        ("7.0", "7", True),
        ("-3", "-3", True),
        ("\\frac{1}{2}", "0.5", True),
        ("2^3", "8", True),
        ("8", "7", False),
        ("", "7", False),
        ("seven", "7", False),
        ("9" * 300, "7", False),
    ],
)
def test_is_right(answer: str, label: str, right: bool) -> None:
    assert is_right(f"I think \\boxed{{{answer}}}.", label) is right


@pytest.mark.parametrize("hostile", ["9^{9^{9^9}}", "100000000!", "2^{10000000000}", "\\frac{1}{0}", "{" * 60])
def test_answers_that_cannot_be_computed_are_wrong_and_stop_nobody(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = AnswerVerifier(seconds=2.0)
    monkeypatch.setattr(math, "_verifier", verifier)
    assert is_right(f"\\boxed{{{hostile}}}", "7") is False
    assert is_right("\\boxed{\\frac{14}{2}}", "7") is True  # the next question is answered
    verifier.close()


def test_a_label_may_be_a_number() -> None:
    assert is_right("\\boxed{33}", 33) is True
    assert is_right("\\boxed{2.50}", 2.5) is True


def test_only_the_response_counts() -> None:
    prompt = "Put it in \\boxed{7}. "
    result = reward_func([prompt + "no idea", prompt + "\\boxed{7}"], [prompt, prompt], ["7", "7"])
    assert torch.equal(result["rewards"], torch.tensor([0.0, 1.0]))
    assert torch.equal(result["scores"], result["rewards"])


def test_a_megabyte_of_braces_is_wrong_and_quick() -> None:
    started = time.monotonic()
    assert is_right("\\boxed{" + "{" * 10**6, "7") is False
    assert time.monotonic() - started < 5
