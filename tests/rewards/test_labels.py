"""Labels that a reward cannot read or no response can match are refused."""

import logging
from typing import Any

import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.gym.problem import GymLabel
from meds_openrlhf.rewards.labels import CHECKED_LABELS, require_labels

GYM_LABEL = GymLabel(task="chain_sum", size=1, seed=0, index=0).as_text()


def ask(labels: list[Any], reward: str = "math", column: str | None = "answer", resume: bool = False) -> None:
    require_labels(reward, {"answer": labels}, column, resume)


@pytest.mark.parametrize(
    ("reward", "label", "message"),
    [
        ("gym", "42", r"meds.reward=gym: cannot read the labels in data.label_key: row 2: '42' "),
        ("gym", '{"reasoning_gym": "chain_sum", "entry": {}}', "row 2: a label contains its problem, as those of earl"),
        ("math", GYM_LABEL, r"meds.reward=math: cannot read reasoning-gym.s labels in data.label_key. Set it"),
    ],
)
def test_a_reward_that_cannot_read_the_labels_is_refused(reward: str, label: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask([GYM_LABEL if reward == "gym" else "1", label], reward)
    with pytest.raises(ConfigError, match=r"data.label_key: names no column, and meds.reward=math compares"):
        ask([label], column=None)
    with pytest.raises(ConfigError, match=r"data.label_key: reasoning-gym refuses chain_sun .ValueError: Dataset"):
        ask([GYM_LABEL.replace("sum", "sun")], "gym")
    for fitting, its_reward in ((GYM_LABEL, "gym"), ("42", "math"), (42, "math")):
        ask([fitting] * 2, its_reward)


@pytest.mark.parametrize("reward", ["math", "math-signed", "math-format", "math-string"])
@pytest.mark.parametrize(
    ("label", "fault"),
    [
        (None, "is null"),
        (float("nan"), "is null"),
        (" ", "is empty"),
        (["1"], "is a list"),
        ({"ground_truth": "1", "style": "rule"}, "is a mapping"),
        ("9+1=10\n#### 10", "is a worked solution"),
        ("So it is\n10.", "is a worked solution"),
    ],
)
def test_one_label_that_no_answer_equals_is_refused_wherever_it_stands(reward: str, label: Any, fault: str) -> None:
    message = rf"^data.label_key=answer: the label of row 900 {fault}, which no answer equals: "
    with pytest.raises(ConfigError, match=message):
        ask(["1"] * 899 + [label] + ["1"] * 9000, reward)


def test_labels_that_only_a_copy_matches_are_told_or_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unreadable = r"\frac{1}{"
    with caplog.at_level(logging.WARNING):
        ask([unreadable, *["1"] * 199])  # 0.5 %
    assert "1 of 200 labels cannot be compared, e.g. that of row 1: " in caplog.text
    with pytest.raises(
        ConfigError, match=r"3 of 200 labels cannot be compared, e.g. that of row 11: .*`meds data prep"
    ):
        ask([unreadable if row in (10, 50, 70) else "1" for row in range(200)])
    ask([unreadable] * 3, "math-string")  # which compares texts
    assert CHECKED_LABELS == 200
    ask(["1", unreadable] * CHECKED_LABELS)  # the even rows are looked at
    with caplog.at_level(logging.WARNING):  # a run that is resumed has trained on them
        ask([unreadable, None], resume=True)
    assert "data.label_key=answer: the label of row 2 is null, which no answer equals: None. `meds data" in caplog.text
    matrix = "\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}"
    for labels in ([matrix], [1, 2.5], ["\\text{yes}", "(1, 2)", r"\boxed{5}", "x^2+1"]):
        ask(labels)
