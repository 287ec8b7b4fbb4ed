"""Where a wrong response departs from the right ones."""

import pytest

from meds_openrlhf.themes.departure import departure, departure_span, numbers_in

GIVEN, RIGHT = numbers_in(["Compute (4+3)*2"]), numbers_in(["4+3=7, 7*2=14"])


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ("Well, 3*2 is 6. 4+6=10", ", given * given is wrong ."),
        ("So 4+3=7 and 7*2=15: 15", "and right * given = wrong :"),
        ("9, and again 9", "wrong ,"),
        ("6*2=9. 9+9", "wrong *"),
        ("4+3=7, 7*2=14", "right * given = right"),  # nothing is wrong: the end
        ("Thus \\boxed{3.5}", "thus \\boxed { wrong }"),
        ("no idea", "no idea"),
        ("", ""),
    ],
)
def test_the_words_around_the_first_wrong_number(response: str, words: str) -> None:
    assert departure(response, GIVEN, RIGHT) == words.split()


def test_a_wrong_number_that_comes_again_is_told_from_a_new_one() -> None:
    assert departure("9 9", GIVEN, RIGHT) == ["wrong", "wrong-again"]


@pytest.mark.parametrize(
    ("response", "part"),
    [("Well, 3*2 is 6. 4+6=10", ", 3*2 is 6."), ("4+3=7, 7*2=14", "7*2=14"), ("no idea", "no idea"), ("", "")],
)
def test_the_place_of_the_departure(response: str, part: str) -> None:
    start, end = departure_span(response, GIVEN, RIGHT)
    assert response[start:end] == part
