"""The table of verdicts, through the reward's own way to them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meds_openrlhf.rewards import equality
from meds_openrlhf.rewards.equality import LONGEST_VALUE
from meds_openrlhf.rewards.grading import is_right
from meds_openrlhf.rewards.verifier import AnswerVerifier
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


def test_hostile_answers_are_wrong_and_the_next_one_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "_verifier", AnswerVerifier(seconds=1.0, processes=2))
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
