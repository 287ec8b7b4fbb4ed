"""Which calculations are known to be wrong: none that is right, however it is written."""

import pytest

from meds_openrlhf.themes.calculations import equations_in
from meds_openrlhf.themes.words import words_in

# Right, or of numbers that are not plain; some have a false part that no checker may look at alone.
RIGHT = [
    r"25\% \times 80 = 20", ".5 * 60 = 30", r"\frac{24 - 12}{3} = 4", r"\frac{1}{2} + \frac{1}{3} = \frac{5}{6}",
    r"\binom{7}{2} + 2 = 23", r"\frac{7 + 8 + 15}{2} = 15", "3 × 2 1/2 = 7 1/2", "$10.00 + $18.00 = $28.00",
    r"80 \times 25\% = 20", r"\frac{1}{4} = 25\%", r"\frac{1500 - 1200}{1200} \times 100\% = 25\%",
    r"\frac{7-3}{5-1} = 1", r"\frac{12}{4 \times 3} = 1", r"12 \div \frac{3}{4} = 16", r"6 / \frac{1}{2} = 12",
    "6 ÷ 1/3 = 18", "$.75 + $.50 = $1.25", ".08 * 50 = 4", r"2\frac{1}{2} \times 4 = 10",
    r"10 - 2\frac{1}{2} = 7.5", "8 + 4 = 3(4)", "8 + 4 = 3 x 4 = 12", "8 + 8 = 4²", "6 * 4 = 4!", "50 + 50 = $1",
    "30 + 30 = 1 hour", "60 + 45 = 1h45", "500 + 700 = 1.2 kg", "1500 * 2 = 3k", "20% of 50 + 10 = 20",
    "half of 10 + 2 = 7", "3 multiplied by 4 plus 2 equals 14", "12 divided by 4 times 2 = 6", "12 : 3 + 1 = 5",
    "Week 1 - $40 + $50 = $90", "Day 2 - 3 × 4 = 12", "AB-3-4 = 12", "5 ⋅ 3 + 2 = 17", "√9 + 1 = 4", "|2 - 7| = 5",
    "[2 + 3] * 4 = 20", "5! / 3! = 20", "2 ** 3 + 1 = 9", "10 mod 3 + 1 = 2", r"\log_{2} 8 + 1 = 4",
    "45 / 60 = 75%", "17 / 5 = 3 remainder 2", "10 / 3 = 3.3", "(2 + 3) * 4 = 20", "3 x 4 + 3 = 15",
    "I have 30 apples - 4 * 6 = 6", "-7\n-7 - 0 = -7", r"$\frac{3}{4} \cdot 8 = 6$", "So 2/3 * 9 = 6.",
    "3 dozen + 4 = 40", r"3 \text{ boxes} + 4 \times 5 = 23", "cost = 3 * $4 = $12", "1/2 + 1/4 = 3/4",
    "2.5 * 4 = 10 hours", "0.1 + 0.2 = 0.3", "x + 3 + 4 = 20", "2x + 3 - 1 = 9", "f(3) + 4 + 1 = 9",
    "3^2 + 4 + 1 = 14", "the ratio 2:3 + 1 = 4", "10 - 7 = 3 (since 10 > 7)", "1 + 1 = 10 (in binary)",
    "twice 4 + 2 = 10", "negative 3 + 5 = 2", "the sum 3, 4 + 5 = 9",
]  # fmt: skip
FALSE = [
    "3 x 4 = 13", "15 x $12 = $170", "5 x 12 + 3 = 53", "12 - 5 is 8", "12 + 15 gives 28", "1) 3 * 4 = 13",
    "1. 3 * 4 = 13", "**3 + 4 = 8**", "So 3 + 4 = 8.", "Then 24 - 5 = 18", "<<3*4=13>>13", "$3 + 4 = 8$",
    r"\(3 + 4 = 8\)", r"\[3 \times 4 = 13\]", "10 - 2 = 10", "-1 - 4 = 3", "9 - 8 = -7\n-7 - 0 = -6",
    r"3 + 4 &= 7 \\ -2 - 1 &= -2", "1,200 - 200 = 900", "Step 1: 3 + 4 = 8", "- 3 + 4 = 8",
    "(5 + 3) = 8, 8 * 2 = 15", "4 times 6 is 26", r"\frac{1}{3} + \frac{1}{2} = \frac{5}{5}", "3 + 4 = 8, so",
    "Total: $12 + $5 = $18", "12 + 15 = 26 apples", "= 24 + 30 = 55", "12 / 4 = 4", "0.1 + 0.2 = 0.4",
]  # fmt: skip


def calculations(text: str) -> list[tuple[str, bool | None]]:
    words = words_in(text)
    found = equations_in(text, words, 0, len(words))
    return [(text[words[part][0].start : words[part][-1].end], equation.holds) for part, equation in found]


@pytest.mark.parametrize("text", RIGHT)
@pytest.mark.parametrize("form", ["{}", "We see: {}.", "1. {}\n2. Then", "so\n{}\n"])
def test_a_right_calculation_is_never_called_false(text: str, form: str) -> None:
    assert False not in [holds for _, holds in calculations(form.format(text) if "{" not in text else text)]


@pytest.mark.parametrize("text", FALSE)
def test_a_false_calculation_of_plain_numbers_is_found(text: str) -> None:
    assert False in [holds for _, holds in calculations(text)]


@pytest.mark.parametrize("text", ["3 + 4 = 7", "1/2 + 1/4 = 3/4", "0.1 + 0.2 = 0.3", "$1,200.50 - 200 = 1000.5"])
def test_a_plain_calculation_that_holds(text: str) -> None:
    assert calculations(text) == [(text.removeprefix("$"), True)]


def test_the_calculations_of_aligned_lines_are_apart() -> None:
    assert calculations(r"3 + 4 &= 7 \\ 7 - 9 &= -2 \\ -2 - 1 &= -3") == [
        ("3 + 4 &= 7", True), ("7 - 9 &= -2", True), ("-2 - 1 &= -3", True),
    ]  # fmt: skip
    assert calculations("9 - 8 = 1\n-7 - 0 = -7") == [("9 - 8 = 1", True), ("-7 - 0 = -7", True)]
