"""The reward of reasoning-gym's tasks: the task's own scorer decides, in a process with limits."""

import json
from typing import Any

import numpy as np
import pytest
import reasoning_gym

from meds_openrlhf.rewards import grading, gym_problem
from meds_openrlhf.rewards.grading import solves, verdict
from tests.rewards.test_math import loaded


def label(task: str, number: int = 0, threshold: float = 1.0, **settings: Any) -> str:
    entry = reasoning_gym.create_dataset(task, size=number + 1, seed=0, **settings)[number]
    return gym_problem.label(task, settings, threshold, entry)


COUNTDOWN = gym_problem.label(
    "countdown", {}, 1.0, {"answer": "(7 - 3)*2", "metadata": {"numbers": [2, 3, 7], "target": 8}}
)


def test_scores_as_openrlhf_and_an_evaluation_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = [f"What is it? {answer}<|im_end|>" for answer in (r"\boxed{2*(7-3)}", r"\boxed{2+7-1}", "8")]
    found = loaded("gym").reward_func(queries, ["What is it? "] * 3, [COUNTDOWN] * 3)
    assert found["rewards"].tolist() == found["scores"].tolist() == [1.0, 0.0, 0.0]
    assert verdict("so \\boxed{2*(7-3)}", COUNTDOWN) == ("2*(7-3)", True)
    monkeypatch.setattr(grading, "_scorers", None)  # which other labels do not need
    assert verdict("so \\boxed{42.0}", "42") == ("42.0", True)
    assert verdict("so 42", "42") == (None, False)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        *[("(7 - 3)*2", True), ("8", False), ("__import__('os')._exit(0)", False)],
        ("2*7 - 2*3", False),  # 8, but not by these numbers
        ("7*3 - 2", False),  # its scorer still gives 0.05
    ],
)
def test_the_scorer_decides_and_not_the_answer_in_the_label(answer: str, right: bool) -> None:
    assert solves(f"It is \\boxed{{{answer}}}.", COUNTDOWN) is right


def test_a_threshold_lets_partial_credit_count() -> None:
    strict, lenient = (label("string_insertion", threshold=threshold) for threshold in (1.0, 0.1))
    characters = list(gym_problem.read_entry(strict)["answer"])
    assert not solves(f"\\boxed{{{characters}}}", strict)
    assert solves(f"\\boxed{{{characters}}}", lenient)
    assert not solves("\\boxed{['A']}", lenient)


@pytest.mark.parametrize(
    "answer",
    [
        *("oracle_answer", "entry['answer']", "open('/tmp/x', 'w')", "(exec)('1')", "''.join('AB')", "(lambda: 1)()"),
        *("[exec][0]('1')", "(x:=1)", "().\\\n__class__", "f'{exec(1)}'", "\uff45ntry['ans' + 'wer']"),
        "[_\uff3fimport_\uff3f('os')]",  # which Python reads as __import__
    ],
)
def test_an_answer_that_a_scorer_would_evaluate_may_only_compute(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluating(self: Any, answer: str, entry: dict[str, Any]) -> float:
        oracle_answer = entry["answer"]
        return float(eval(answer) is not None or bool(oracle_answer))

    task = reasoning_gym.create_dataset("string_insertion", size=1, seed=0)
    monkeypatch.setattr(type(task), "score_answer", evaluating)
    assert gym_problem.score(task, "['A', 'B']", task[0]) == 1.0
    assert gym_problem.score(task, answer, task[0]) == 0.0


def test_tuples_and_numpy_survive_the_label() -> None:
    entry = {"answer": "1", "metadata": {"a": ((1, 2), [3, ("x",)]), "b": np.float64(0.5), "c": np.arange(2), "d": {}}}
    read = gym_problem.read_entry(gym_problem.label("chain_sum", {}, 1.0, entry))
    assert read == {"answer": "1", "metadata": {"a": ((1, 2), [3, ("x",)]), "b": 0.5, "c": [0, 1], "d": {}}}
    with pytest.raises(TypeError, match="set"):
        gym_problem.label("chain_sum", {}, 1.0, {"answer": "1", "metadata": {1, 2}})


def test_long_answers_and_tasks_with_settings_are_graded() -> None:
    tower = label("tower_of_hanoi", 1, min_disks=7, max_disks=7)
    answer = gym_problem.read_entry(tower)["answer"]
    assert len(answer) > 2000
    assert solves(f"\\boxed{{{answer}}}", tower)
    given = label("decimal_arithmetic", max_num_decimal_places=6)
    assert json.loads(given)["settings"] == {"max_num_decimal_places": 6}
    assert solves(f"\\boxed{{{gym_problem.read_entry(given)['answer']}}}", given)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("42", r"'42' is not a problem of reasoning-gym. Make it with `meds data prepare gym:TASK`"),
        ('{"reasoning_gym": "chain_sun", "settings": {}, "threshold": 1, "entry": {}}', "'chain_sun' not registered"),
        ('{"reasoning_gym": "chain_sum", "settings": {"a": 1}, "threshold": 1, "entry": {}}', "chain_sum refuses the"),
    ],
)
def test_other_labels_are_errors_and_no_verdicts(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        solves("\\boxed{42}", text)
