"""Questions out of their wrapping, which of them are the same, and answers as texts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.data.questions import (
    DAPO_CLOSING,
    DAPO_OPENING,
    QWEN_MATH_SYSTEM,
    answer_text,
    asks_for_answer_format,
    normalized,
    problem_id,
    question_text,
)

COMMANDS = ("\\left", "\\right", "\\,", "\\;", "\\ ", "\\\\", "\\quad", "\\dfrac", "\\(", "\\]", "\\$", "left", "arrow")
PIECES = st.sampled_from((*COMMANDS, *"\\$~ \ndfrac{}(1Aßﬁ²İ\u0345"))


@given(st.text())
def test_dapos_wrapping_comes_off_to_the_letter(problem: str) -> None:
    assert question_text(DAPO_OPENING + problem + DAPO_CLOSING) == (problem.strip() or None)
    for text in (problem, DAPO_OPENING + problem, problem + DAPO_CLOSING):  # not the whole wrapping
        assert question_text(text) == (text.strip() or None)


@pytest.mark.parametrize(
    "text",
    [
        DAPO_OPENING + "1+1?",
        "1+1?" + DAPO_CLOSING,
        "Put your final answer on its own line.",
        'What is 1+1? Think, and output the final answer after "####".',
        "Make 15. Show your work in <think> </think> tags, and return it in <answer> </answer> tags.",
        "End with <final_answer>.",
        'Finish with the line "The answer is [result]".',
        "Your last line is 'Final answer: $X'.",
        "Reply in JSON.",
    ],
)
def test_instructions_that_are_left_are_noticed(text: str) -> None:
    assert asks_for_answer_format(text)


@pytest.mark.parametrize(
    "text",
    [
        "The answer is the last digit. Find the line through $A$, on its own.",
        "Express your answer in the form $a+b\\sqrt{c}$.",
        "Write the answer as a common fraction. Is 1 < answer > 0?",
        'A parrot says "answer" when it hears #3.',
        'Vasya said: "The answer is $7$." Is he right?',
        "#### Problem 3. Find x.",
        "A JSON file has 3 keys.",
        QWEN_MATH_SYSTEM,
    ],
)
def test_questions_about_numbers_of_a_form_are_none(text: str) -> None:
    assert not asks_for_answer_format(text)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What is $1+1$?", "what is 1 + 1 ?", True),
        ("Find $\\left( a, b\\right)$", "Find \\((a,b)\\)", True),
        ("$\\dfrac{1}{2}\\,x$", "$\\frac{1}{2} x$", True),
        ("x² is\u00a0ﬁne", "x2 is fine", True),
        ("It costs \\$5", "It costs $5", True),
        ("$$a\\quad b$$", "\\[a\nb\\]", True),
        ("What is 1+1?", "What is 1+2?", False),
        ("$a \\leftarrow b$", "$a arrow b$", False),
        ("$\\begin{matrix}1\\\\2\\end{matrix}$", "$\\begin{matrix}12\\end{matrix}$", False),
        ("$\\bigcup A$", "$cup A$", False),
    ],
)
def test_the_same_question_in_other_spacing(one: str, other: str, same: bool) -> None:
    assert (normalized(one) == normalized(other)) == same
    assert (problem_id("math", normalized(one)) == problem_id("math", normalized(other))) == same
    assert problem_id("math", normalized("What is $1+1$?")) == "math-85a0ef199948"  # for ever


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_normalizing_is_idempotent_and_ignores_outer_space(text: str) -> None:
    assert normalized(normalized(text)) == normalized(text)
    for space in (" ", "\n\t", "\u2003"):
        assert normalized(f"{space}{text}{space}") == normalized(f"{text} ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(33, "33"), (27.0, "27"), (0.5, "0.5"), ("25.0", "25"), ("-3.", "-3"), ("0.50", "0.50"), ("025", "025")],
        *[(" $\\frac{1}{2}$ ", "\\frac{1}{2}"), ("\\$18", "\\$18"), ("$5$ cm", "5 cm")],
        *[(["$2$"], "2"), (["1", 2.0], "1, 2")],
        *[(nothing, None) for nothing in ("", "  ", "$$", None, [], [None], float("nan"))],
        ("6 + 12 = <<6+12=18>>18 pens.\n#### 18", "18"),
        *[("#### 1,250", "1250"), ("#### -1,250.50", "-1250.50"), ("1,250", "1,250"), ("a\n#### 1, 2\n", "1, 2")],
        ("So \\boxed{3}, or rather\n$\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        *[("#### $\\boxed{4}$", "4"), ("#### Steps\nSo \\boxed{4}.", "4"), ("\\boxed{$4$}", "4")],
        ("\\boxed{a\nb}", "a b"),
        ("\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}"),
        *[('["\\\\frac{7}{2}"]', "\\frac{7}{2}"), ('["A", "C"]', "A, C"), ("[1,2]", "[1,2]"), ('["1', '["1')],
        *[(word, None) for word in ("proof", "Proof", "notfound", " N/A ", "None", "$nan$")],
        *[("no solution", "no solution"), ("proofs", "proofs"), ("\\text{None}", "\\text{None}")],
        *[("First.\nThen 5.", None), ("a\n#### b\nc", None), ("#### proof", None)],
        *[
            (value, None)
            for value in (["1", None], ["1", ["2"]], ["proof", "2"], '["1", {"a": 2}]', "\\boxed{}", "\\boxed{x")
        ],
        *[(value, None) for value in ({"value": 1}, [{"value": 1}], [[1, 2], [3, 4]])],
    ],
)
def test_an_answer_becomes_a_text(value: Any, text: str | None) -> None:
    assert answer_text(value) == text


@pytest.mark.parametrize("value", [True, b"1", [b"1"]])
def test_a_value_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="is not a text, a number or a list"):
        answer_text(value)


def test_a_worked_solution_is_only_what_it_marks() -> None:
    for solution, answer in (("It is 5.", None), ("It is \\boxed{5}.", "5"), ("It is\n#### 5", "5"), (5, "5")):
        assert answer_text(solution, is_worked=True) == answer


@given(st.text())
def test_a_text_is_cleaned_once_and_for_all(text: str) -> None:
    cleaned = answer_text(text)
    assert answer_text(cleaned) == cleaned
