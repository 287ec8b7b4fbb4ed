"""Final answers in the ways in which dumps write them, and rewards that call right answers wrong."""

import pytest

from meds_openrlhf.dumps import scores
from meds_openrlhf.dumps.answers import COLUMN, STYLES, style_of
from meds_openrlhf.dumps.formats import Rollout
from meds_openrlhf.dumps.scores import Scores
from meds_openrlhf.rollouts.texts import ResponseText, turns_in


@pytest.mark.parametrize(
    ("style", "text", "answer"),
    [
        ("####", "6 * 3 = 18\n#### 18", "18"),
        ("####", "#### Step 1: add\n6 + 1\n#### $1,250.\nThat is all.", "$1,250"),
        ("####", "so\n####x + 1 <|im_end|>\n", "x + 1"),
        ("####", "#### Step 1: add\nand so on, cut off in the mid", None),
        ("<answer>", "<think>2</think><answer> (1 + 2) * 3 </answer>", "(1 + 2) * 3"),
        ("<answer>", "in <answer> tags <answer>\n7\n</answer> done", "7"),
        ("<answer>", "<answer>7", None),
        ("Answer:", "Answer: 5\nNo, wait.\n**Final Answer:** $\\frac{1}{2}$.", "\\frac{1}{2}"),
        ("Answer:", "answer: 12<|eot_id|>", "12"),
        ("Answer:", "the answer is near", None),
        ("\\boxed{}", "\\boxed{5}", "5"),
    ],
)
def test_an_answer_in_each_style(style: str, text: str, answer: str | None) -> None:
    found = ResponseText.of(text, STYLES[style])
    assert found.answer == answer
    assert answer is None or text[found.answer_start :].startswith(answer)
    if answer is not None:
        assert style_of([Rollout("p", text, 0.0), Rollout("p", "none", 0.0)], with_column=True) == style


def test_the_trainers_own_column_counts_where_texts_say_less() -> None:
    rollouts = [Rollout("p", "five", 0.0, answer="5"), Rollout("p", "\\boxed{6}", 0.0, answer="6")]
    assert style_of(rollouts, with_column=True) == COLUMN
    assert style_of(rollouts, with_column=False) == "\\boxed{}"
    assert style_of(rollouts[1:], with_column=True) == "\\boxed{}"
    assert style_of([Rollout("p", "?", 0.0)], with_column=True) == "\\boxed{}"


@pytest.mark.parametrize(
    "unit",
    [
        "#### a",
        "<answer>",
        "Answer: ",
        "#### ",
        "user\n",
        "<tool_response>",
        "\n#### 1 b",
        "answer:" + 50 * ".",
        "Answer:" + " $" * 40,
    ],
)
def test_no_text_makes_the_search_long(unit: str, caplog: pytest.LogCaptureFixture) -> None:
    for pattern in STYLES.values():
        ResponseText.of((unit * 20_000)[:120_000], pattern)
    assert caplog.messages == []  # a search that takes a second is given up, with a warning


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("a <tool_response>b</tool_response> c", ["a ", " c"]),
        ("a\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nc", ["a\n", "\n<|im_start|>assistant\nc"]),
        ("a<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\nb<|eot_id|>c", ["a<|eot_id|>", "c"]),
        ("call\nuser\nb\nassistant\nc", ["call\n", "c"]),
        ("SELECT\nuser\nFROM", ["SELECT\nuser\nFROM"]),  # no turn of the policy's follows
        ("a <information>cut off", ["a "]),
        ("", [""]),
    ],
)  # fmt: skip
def test_replies_in_a_text_are_not_the_policys(text: str, own: list[str]) -> None:
    turns = turns_in(text)
    assert "".join(part for part, _ in turns) == text
    assert [part for part, is_own in turns if is_own] == own


def scored(equal: list[float], other: list[float]) -> Scores:
    scores = Scores()
    scores.add(equal, ["1/2"] * len(equal), ["0.5"] * len(equal))
    scores.add(other, ["3"] * (len(other) - 1) + [None], ["0.5"] * len(other))
    return scores


@pytest.mark.parametrize(
    ("equal", "other", "better"),
    [
        ([1.0, 1.0, 0.2, 0.4], [-1.0, -1.0, -1.8], (0.0, 2)),  # DAPO's penalty for length
        ([1.0, 0.3, 0.4], [0.0, 0.1], (0.3, 2)),
        ([1.0, 1.0, 0.0], [0.0] * 9, None),  # a label in another form is the grader's
        ([1.0, 1.0], [0.0, 1.0], None),
        ([], [0.0, 0.3], None),
    ],
)
def test_a_reward_tells_right_from_wrong(equal: list[float], other: list[float], better: tuple | None) -> None:
    assert scored(equal, other).better(0.5) == better


def test_of_many_rewards_each_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = [0.2 + number / 1e6 for number in range(6_000)]
    found = scored(equal, [-value for value in equal])
    assert found.better(0.5) == (0.0, 6_000)
    monkeypatch.setattr(scores, "MOST_REWARDS", 60)
    assert scored(equal, [-1.0]).better(0.5) is None
