"""Tables of small hand-made comparisons; tests/evaluation/stored has a whole report."""

import pytest

from meds_openrlhf.evaluation.results import Comparison
from meds_openrlhf.evaluation.tables import sections
from tests.evaluation.measured import result

BASE_X = result("base", "x", "1122", "2222")


def _section(comparison: Comparison, title: str) -> list[str]:
    """The lines of the table whose title begins with ``title``."""
    return next(table.splitlines() for heading, table in sections(comparison).items() if heading.startswith(title))


@pytest.mark.parametrize(
    ("letters", "cells"),
    [
        (("12", "11", "11"), ["50.00", "**100.00**", "**100.00**"]),  # bold where another is lower
        (("12", "11", "11", "22"), ["*50.00*", "**100.00**", "**100.00**", "0.00"]),  # italic where a third is lower
    ],
)
def test_the_best_are_marked(letters: tuple[str, ...], cells: list[str]) -> None:
    results = [result(name, "x", own) for name, own in zip("abcd", letters)]
    rows = _section(Comparison(results), "Pass@k (%), k = 1")[2:]
    assert [row.split("|")[2].strip() for row in rows] == cells


def test_one_model_on_one_benchmark_is_neither_best_nor_an_average_nor_a_difference() -> None:
    comparison = Comparison([BASE_X])
    assert _section(comparison, "Pass@k (%), k = 1 and 4") == [
        "| model | x pass@1 | x pass@4 |",
        "|-------|---------:|---------:|",
        "| base  |    25.00 |    50.00 |",
    ]
    assert not any("Difference" in title or "Avg." in table for title, table in sections(comparison).items())
    assert _section(Comparison([result("base", "x", "1", "2")]), "Pass@k (%), k = 1")[0] == "| model | x pass@1 |"
