"""Words, numbers by value and mathematics in texts of responses."""

from fractions import Fraction

import pytest

from meds_openrlhf.themes.words import values_in, words_in


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("So **Tom** has 3 apples.", "so tom has 3 apples"),
        (r"\(3 \times 4 = 12\)", "3 * 4 = 12"),
        (r"\[ \frac{12}{4} + \dfrac{1}{2} \]", "12 / 4 + 1 / 2"),
        (r"$\left( 5 \cdot 2 \right) \text{ dollars}$", "( 5 * 2 ) dollars"),
        (r"\begin{align*} x &= 7 \end{align*}", "x = 7"),
        ("- one item\n* 3 × 4 ÷ 2", "one item 3 * 4 / 2"),
        ("five plus 2 equals seven", "five + 2 = seven"),
        (r"\alpha and \circ", r"\alpha and \circ"),
        (r"5\% of {20}", "5 % of 20"),
        (". , ; ! ?", ""),
    ],
)
def test_markup_is_left_out_and_operators_are_plain(text: str, words: str) -> None:
    assert " ".join(word.text for word in words_in(text)) == words


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("36.50 and 36.5", ["36.5"]),
        (r"1{,}000 or 1,000 or 1\,000", ["1000"]),
        (r"\frac{1}{2}", ["1", "1/2", "2"]),
        ("1/2", ["1", "1/2", "2"]),
        ("3,4", ["3", "4"]),
        ("four", ["4"]),
        ("one of them", []),
        ("5/0", ["0", "5"]),
    ],
)
def test_numbers_are_known_by_their_value(text: str, values: list[str]) -> None:
    assert sorted(values_in(words_in(text))) == sorted(map(Fraction, values))


def test_words_know_their_place_and_long_texts_end() -> None:
    text = r"Then \(\frac{30}{100} \times 1{,}200 = 360\)."
    assert [text[word.start : word.end] for word in words_in(text)] == [
        "Then",
        "30",
        "}{",
        "100",
        r"\times",
        "1{,}200",
        "=",
        "360",
    ]
    for piece in ("{", "1,", "1{,}", r"\frac{", r"\frac{1}{", "9", "a'", "\\", "* ", "\n- "):
        assert len(words_in(piece * 100_000)) <= 200_000
