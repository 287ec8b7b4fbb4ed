"""The reward of reasoning-gym's tasks: their own scorers decide, in processes with limits."""

import json
import re
import sys
import warnings
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.factory import DATASETS

from meds_openrlhf.gym import problem, tasks
from meds_openrlhf.gym.problem import GymLabel, TaskRefusedError, made_of
from meds_openrlhf.gym.tasks import is_arithmetic
from meds_openrlhf.rewards.grading import solves, verdict
from meds_openrlhf.runtime.verifier import AnswerVerifier
from tests.gym.audited import WITHOUT_ANSWERS, answers, attacks
from tests.rewards.test_math import loaded

EVALUATING = ("countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication")
# Scores of the answers of `tests.gym.audited` to problem 0 of 50, seed 7, before answers were read by grammar.
SCORES = json.loads(Path(__file__).with_name("gym_scores.json").read_text())


def label(task: str, index: int = 0, **fields: Any) -> str:
    return GymLabel(task=task, **{"size": 50, "seed": 7, "index": index, **fields}).as_text()


COUNTDOWN = label("countdown", size=1, seed=0)  # 29, 4, 95, 30 -> 96: 95 - 4 + 30/6


def test_scores_as_openrlhf_and_an_evaluation_call_it() -> None:
    right = made_of(COUNTDOWN).answer
    queries = [f"What is it? {answer}<|im_end|>" for answer in (rf"\boxed{{{right}}}", rf"\boxed{{{right}-1}}", "8")]
    found = loaded("gym").reward_func(queries, ["What is it? "] * 3, [COUNTDOWN] * 3)
    assert found["rewards"].tolist() == found["scores"].tolist() == [1.0, 0.0, 0.0]
    assert verdict(f"so \\boxed{{{right}}}", COUNTDOWN) == (right, True)
    assert verdict("so \\boxed{42.0}", "42") == ("42.0", True)
    assert verdict("so 42", "42") == (None, False)


def test_a_threshold_lets_partial_credit_count() -> None:
    strict, lenient = (label("string_insertion", threshold=threshold) for threshold in (1.0, 0.1))
    characters = list(made_of(strict).answer or "")
    assert not solves(f"\\boxed{{{characters}}}", strict)
    assert solves(f"\\boxed{{{characters}}}", lenient)
    assert not solves("\\boxed{['A']}", lenient)


def test_every_task_scores_as_before_whatever_was_answered_before() -> None:
    # A list of words is not arithmetic: it is scored as text that the task cannot read, which two tasks give 0.01.
    expected = {
        **SCORES,
        **{name: [*SCORES[name][:11], 0.01, *SCORES[name][12:]] for name in ("countdown", "puzzle24")},
    }
    assert expected.keys() == DATASETS.keys() - WITHOUT_ANSWERS
    found = {}
    for name in expected:
        made = [made_of(label(name, index)) for index in range(3)]
        tried = answers(made[0].answer or "", [made[1].answer or "", made[2].answer or ""])
        ask = [("score", made[0].text, made[0].entry, answer) for answer in tried]
        forward = [problem._examiners.ask(*question) for question in ask]
        with warnings.catch_warnings(action="ignore"):
            backward = [scored_here(*question[1:]) for question in reversed(ask)]
        assert [score or 0.0 for score in forward] == backward[::-1], name
        found[name] = [round(score or 0.0, 9) for score in forward]
    assert found == expected


def scored_here(*question: str) -> float:
    try:
        return tasks.score(*question)
    except Exception:
        return 0.0


@pytest.mark.parametrize("task", EVALUATING)
def test_no_answer_runs_code_or_changes_a_later_score(task: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    made = made_of(label(task))
    assert not any(map(made.is_right, attacks(str(mark))))
    assert not mark.exists()
    assert not made.is_right("2+2")
    assert not made.is_right("nonsense")
    assert made.is_right(made.answer or "")


def test_an_audit_sees_nothing_of_an_answer_or_a_label_but_its_parsing(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.gym.audited", str(tmp_path / "mark")]
    audited = run(command, capture_output=True, text=True, check=True)
    assert json.loads(audited.stdout.splitlines()[-1].lstrip(".")) == []
    assert not (tmp_path / "mark").exists()


def test_a_label_makes_the_same_problem_in_every_process() -> None:
    """The order of sets, global generators and the number of problems matter to these tasks."""
    one, two = (AnswerVerifier(tasks.__name__, "reasoning_gym", processes=1) for _ in range(2))
    for task in ("polynomial_multiplication", "ransom_note", "word_ladder", "list_functions", "acre"):
        first, again, of_more = (
            examiner.ask("make", label(task, 2, size=size), seconds=60)
            for examiner, size in ((one, 10), (two, 10), (one, 40))
        )
        assert first == again
        assert (of_more["digest"] != first["digest"]) is (task == "acre")


def test_long_answers_and_tasks_with_settings_are_graded() -> None:
    tower = made_of(label("tower_of_hanoi", 1, settings={"min_disks": 7, "max_disks": 7, "max_pegs": 3}))
    assert len(tower.answer or "") > 2000
    assert solves(f"\\boxed{{{tower.answer}}}", tower.text)
    given = made_of(label("decimal_arithmetic", settings={"max_num_decimal_places": 6}))
    assert solves(f"\\boxed{{{given.answer}}}", given.text)


def test_labels_that_make_no_problem_are_errors_and_no_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "MAKING_SECONDS", 1.0)
    for text, error in (
        ("42", r"'42' is not a problem of reasoning-gym. Make it with `meds data prepare gym:TASK`"),
        (label("chain_sun"), r"reasoning-gym refuses chain_sun \(ValueError: Dataset 'chain_sun' not registered\)"),
        (label("chain_sum", settings={"a": 1}), r"reasoning-gym refuses chain_sum \(TypeError: "),
        (label("acre", size=10**9), "problem 0 of acre cannot be made: it takes more than 1 s, or too much memory"),
        (label("chain_sum", digest="0" * 16), "problem 0 of chain_sum is another one in this reasoning-gym. Make the"),
    ):
        with pytest.raises(ValueError, match=error):
            solves("\\boxed{42}", text)
    with pytest.raises(TaskRefusedError, match=r"refuses composite \(AssertionError: Must specify"):
        made_of(label("composite"))


@pytest.mark.parametrize(
    "text",
    [
        *("7", " 2*(7 - 3) ", "-5*x**3/3 + C", "exp(-x)*sin(2*x)/2 - pi", "7 // 2 % 3", "log(x, 10)"),
        *("1e3", "0x1f", "1_000", "sqrt(sqrt(x1))", "+-1", "Abs(-3)", "(\n1*3*5 + 9\n)"),
    ],
)
def test_arithmetic_is_computed(text: str) -> None:
    assert is_arithmetic(text)


@pytest.mark.parametrize(
    "text",
    [
        *attacks("/tmp/x"),
        *("", "7 +", "'7'", "1 if 1 else 2", "[1]", "(1, 2)", "{1}", "{1: 2}", "1 < 2", "1 and 2", "not 1", "~1"),
        "1 | 2",
        *("x.real", "x[0]", "f(2)", "(sin)(2)(3)", "sin(2)(3)", "sin(x=2)", "sin(*x)", "sin(**x)", "lambda: 1"),
        "x := 1",
        *("(x := 1)", "await x", "(yield)", "1j", "...", "None", "True", "f'{1}'", "b'1'", "1; 2", "1 # 2"),
        *("1\\\n+2", "1\n+2"),
        *("\uff53in(2)", "\u0663", "2\u00d73", "__import__", "eval", "alpha"),
        *("(" * 5000 + "1" + ")" * 5000, "-" * 100_000 + "1", "1+" * 100_000 + "1", "9" * 5000),
    ],
    ids=lambda text: text[:20],
)
def test_everything_else_is_refused(text: str) -> None:
    assert not is_arithmetic(text)


def test_a_task_may_know_more_names_but_no_functions() -> None:
    assert is_arithmetic("2*alpha", {"alpha"})
    assert not is_arithmetic("alpha(2)", {"alpha"})
    assert not is_arithmetic("beta", {"alpha"})


@given(st.text("019xC+-*/%.,()[]{}'\"\\_=:;!#@ \nsinpeva", max_size=40))
def test_what_is_arithmetic_names_calls_and_quotes_nothing_else(text: str) -> None:
    if is_arithmetic(text):
        code = compile(text.strip(), "answer", "eval")
        assert all(re.fullmatch(r"[a-zA-Z]\d?|pi|sin", name) for name in code.co_names)
        assert all(isinstance(constant, (int, float, tuple)) for constant in code.co_consts)
