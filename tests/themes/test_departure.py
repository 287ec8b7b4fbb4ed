"""Where a wrong response departs from the right ones."""

import pytest

from meds_openrlhf.themes.departure import departure, numbers_in

GIVEN, RIGHT = numbers_in(["Compute (4+3)*2"]), numbers_in(["4+3=7, 7*2=14"])


@pytest.mark.parametrize(
    ("response", "words", "part"),
    [
        ("Well, 3*2 is 6. 4+6=10", ", given * given is wrong .", ", 3*2 is 6."),
        ("So 4+3=7 and 7*2=15: 15", "and right * given = wrong :", "and 7*2=15:"),
        ("9, and again 9", "wrong ,", "9,"),
        ("No, that is wrong, 4*9", "is wrong , given * wrong", "is wrong, 4*9"),
        ("9 9", "wrong wrong-again", "9 9"),  # is told from a new one
        ("6*2=9. 9+9", "wrong *", "6*"),
        ("4+3=7, 7*2=14", "right * given = right", "7*2=14"),  # nothing is wrong: the end
        ("Thus \\boxed{3.5}", "thus \\boxed { wrong }", "Thus \\boxed{3.5}"),
        ("no idea", "no idea", "no idea"),
        ("", "", ""),
    ],
)
def test_the_words_around_the_first_wrong_number(response: str, words: str, part: str) -> None:
    found, place = departure(response, GIVEN, RIGHT)
    assert (found, response[place]) == (words.split(), part)
