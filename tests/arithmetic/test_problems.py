"""The demo's problems, mistakes and worked solutions."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.arithmetic.problems import (
    LONGEST_SOLUTION,
    MISTAKES,
    NO_MISTAKE,
    Problem,
    dominant_mistakes,
    draw_problems,
    make_problem,
    work,
    write_solution,
)

BY_NAME = {mistake.name: mistake for mistake in (NO_MISTAKE, *MISTAKES)}
POOL = draw_problems(200, seed=5)


def boxed(solution: str) -> int:
    return int(re.fullmatch(r".*\\boxed\{(-?\d+)\}", solution)[1])


@pytest.mark.parametrize(
    ("expression", "answers"),
    [
        ("3+4*2", {"none": 11, "left to right": 14, "off by one": 12}),
        ("(7-2)*6-5", {"none": 25, "ignored brackets": -10}),
        ("48+37", {"none": 85, "lost carry": 75}),
        ("4*6-5", {"flipped subtraction": -19}),
        ("5*(6-2)", {"ignored brackets": 28}),
        ("9+3*7", {"lost carry": 20}),
    ],
)
def test_each_mistake_has_its_own_answer(expression, answers):
    assert {name: work(expression, BY_NAME[name]).answer for name in answers} == answers


def test_expressions_are_worked_step_by_step_or_refused_by_name():
    assert work("(7-2)*6-5").steps == (("7-2", 5), ("5*6", 30), ("30-5", 25))
    assert work("3+4*2", BY_NAME["left to right"]).steps == (("3+4", 7), ("7*2", 14))
    assert work("48+37").steps == (("8+7", 15), ("4+3+1", 8))  # by columns
    assert work("48+37", BY_NAME["lost carry"]).steps == (("8+7", 15), ("4+3", 7))
    names = [mistake.name for mistake in dominant_mistakes(make_problem("4*6-5"))]
    assert names == ["flipped subtraction", "off by one"]
    for expression in ("3+", "(3+4", "3+4)", "", "3 plus 4", "3/4", "*3"):
        with pytest.raises(ValueError, match=r"expression=.*: must consist of integers"):
            make_problem(expression)


def test_problems_are_distinct_and_come_from_the_seed():
    assert draw_problems(3, seed=0) == (Problem("3+3*6", 21), Problem("25+26", 51), Problem("(4+3)*5", 35))
    assert len({problem.expression for problem in POOL}) == 200
    assert draw_problems(50, seed=5) == POOL[:50]
    assert draw_problems(50, seed=6) != POOL[:50]
    with pytest.raises(ValueError, match="count=5000: must be from 0 to 800"):
        draw_problems(5000, seed=0)


@given(st.sampled_from(POOL))
def test_every_problem_has_two_dominant_mistakes_with_answers_of_their_own(problem):
    mistakes = dominant_mistakes(problem)
    answers = {work(problem.expression, mistake).answer for mistake in mistakes}
    assert len(mistakes) == 2
    assert len(answers | {problem.answer}) == 3
    # Python's own precedence is the right one; the columns of a sum lead to it too.
    assert problem.answer == eval(problem.expression)


@given(st.sampled_from(POOL), st.sampled_from([NO_MISTAKE, *MISTAKES]), st.integers(0, 10_000))
def test_the_boxed_answer_is_what_the_mistake_claims(problem, mistake, seed):
    solution = write_solution(problem, mistake, random.Random(seed))
    assert boxed(solution) == work(problem.expression, mistake).answer
    assert len(solution) <= LONGEST_SOLUTION
    assert "\n" not in solution
    assert solution == write_solution(problem, mistake, random.Random(seed))
    generator = random.Random(seed)  # which words it in many ways
    assert len({write_solution(problem, mistake, generator) for _ in range(20)}) > 10
