"""Where a wrong response departs from the right ones."""

import pytest

from meds_openrlhf.rollouts.texts import ResponseText
from meds_openrlhf.themes.departure import Departure, Problem

PROMPT = "Lena buys 4 boxes of 6 pens and loses 5 pens. How many pens are left?"
RIGHT = [r"She has 4 * 6 = 24 pens. Then 24 - 5 = 19. \boxed{19}", r"4 \times 6 = 24, 24 - 5 = 19"]


def departure(text: str, prompt: str = PROMPT, right: list[str] = RIGHT, truth: str | None = "19") -> Departure:
    return Problem(prompt, right, truth).departure(ResponseText.of(text, None))


@pytest.mark.parametrize(
    ("text", "relation", "calculation"),
    [
        (r"4 + 6 = 10. Then 10 - 5 = 5. \boxed{5}", "adds instead of multiplying", "given + given = wrong"),
        (r"4 * 6 = 26. Then 26 - 5 = 21. \boxed{21}", "miscalculates a product", "given * given = wrong"),
        (r"4 times 6 is 24, and 24 plus 5 is 29. \boxed{29}", "adds instead of subtracting", "right + given is wrong"),
        (r"\(4 \times 6 = 24\). So it is \boxed{24}", "stops at an intermediate result", ""),
        (r"There are 6. \boxed{6}", "repeats a given number", ""),
        (r"So many times, 4 + 6 = 10. \boxed{10}", "adds instead of multiplying", "given + given = wrong"),
        (r"4 * 6 + 5 = 29, \boxed{29}", "multiplies and adds", "given * given + given = wrong"),
        (r"\(\frac{6}{4} = 1.5\), so \boxed{1.5}", "divides instead of multiplying", "given / given = wrong"),
        (r"I guess \boxed{77}", "no calculation", ""),
        ("", "no calculation", ""),
    ],
)
def test_a_calculation_is_compared_with_those_of_right_responses(text: str, relation: str, calculation: str) -> None:
    found = departure(text)
    assert (found.relation, found.calculation) == (relation, calculation)


@pytest.mark.parametrize(
    ("right", "wrong", "relation", "calculation"),
    [
        ("<think>3 * 4 = 12? No.</think>3 + 4 = 7", "3 * 4 = 12", "multiplies instead of adding",
         "given * given = wrong"),
        ("3 - 4 = -1", "3 - 4 = 1", "miscalculates a difference", "given - given = right"),
        ("First 3 * 4 = 12, then 12 - 2 = 10", "1. 3 * 4 = 12\n2. 12 - 2 = 11", "miscalculates a difference",
         "right - right = wrong"),
        ("3 * 4 = 12", "Step 1: 3 * 4 = 13", "miscalculates a product", "given * given = wrong"),
        (r"\frac{1}{3} + \frac{1}{2} = \frac{5}{6}", r"\frac{1}{3} + \frac{1}{2} = \frac{5}{5}",
         "miscalculates a quotient and a sum", "right / given + right / right = right / right"),
        ("3 + 4 = 7\n7 - 9 = -2", "3 + 4 = 7\n7 - 9 = -2\n-2 - 1 = 3", "miscalculates a difference",
         "- right - wrong = given"),
        ("3 * 8 = 24, 24 - 4 = 20", "8 - 4 = 24, 24 + 4 = 28", "miscalculates a difference",
         "right - given = right"),
        ("3 + 4 = 7, 7 + 5 = 12", "3 * 4 = 7, 7 + 5 = 13", "miscalculates a sum", "right + right = wrong"),
        ("3 + 4 = 7", "4 + 4 = 8, 8 - 1 = 9", "adds", "given + given = wrong"),
        ("6*(4+5) = 6*4 + 6*5 = 24 + 30 = 54, 60 - 54 = 6", "6*(4+5) = 6*4 + 6*5 = 24 + 30 = 54, 60 - 54 = 7",
         "miscalculates a difference", "right - right = wrong"),
        ("8 / 4 = 2", "4 / 8 = 0.5", "divides", "given / right = wrong"),
        (r"\boxed{-2}", r"\boxed{5}", "no calculation", ""),
    ],
)  # fmt: skip
def test_signs_fractions_chains_and_neighboring_sentences(
    right: str, wrong: str, relation: str, calculation: str
) -> None:
    found = departure(wrong, "What about 3 and 4?", [right], None)
    assert (found.relation, found.calculation) == (relation, calculation)


def test_a_right_calculation_whose_result_is_given_as_the_answer_is_marked() -> None:
    text = r"Step by step. 4 * 6 = 24, so it is \boxed{24}"
    assert text[departure(text).part] == "4 * 6 = 24"


def test_an_answer_that_is_a_word_of_the_prompt_stays() -> None:
    assert departure(r"\boxed{B}", "Is it (A) or (B)?", [r"\boxed{A}"], "A").words == ["b"]


def test_scratch_work_is_left_out_if_an_answer_follows() -> None:
    solution = r"We add 4 + 6 = 10. The answer is \boxed{10}."
    scratch = "<think>7 * 8 = 56? No. 4 / 6 = 0.67.</think> "
    plain, thought = departure(solution), departure(scratch + solution)
    assert (thought.words, thought.calculation) == (plain.words, plain.calculation)
    assert thought.words == ["we", "add", "given", "+", "given", "=", "wrong", "the", "answer"]
    text = scratch + solution
    assert text[thought.part] == "4 + 6 = 10"
    assert departure(r"<think>4 + 6 = 10, so \boxed{10}").calculation == "given + given = wrong"


def test_departure_without_a_calculation_is_the_wrong_answer() -> None:
    text = r"Here 99 comes to mind. I see 1,300 in all of it. So \boxed{1300}"
    found = departure(text)
    assert found.words[-3:] == ["wrong", "in", "all"]
    assert text[found.part] == "comes to mind. I see 1,300"[len("comes ") :]
    text = r"It goes west then. So \boxed{west}"
    found = departure(text, "Where does it go, east?", [r"It goes \boxed{north}"], "north")
    assert (found.words, text[found.part]) == (["goes", "west", "then", "so"], "It goes west")


def test_only_prompt_words_and_numbers_of_the_problem_are_replaced() -> None:
    found = departure(r"Lena has 4 + 6 = 10 pens now. \boxed{10}")
    assert found.words == ["has", "given", "+", "given", "=", "wrong", "now"]
    assert departure("no answer at all").words == ["no", "answer", "at", "all"]


def test_hostile_texts_end_quickly() -> None:
    for piece in ("1 + ", "= ", "a ", "1 = 2 ", "</think>", "a"):
        found = departure(piece * 20_000 + "= 7 \\boxed{" + "a " * 5_000 + "}")
        assert len(found.calculation) + sum(map(len, found.words)) < 1_000
