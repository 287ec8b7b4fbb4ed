"""Tables of a small hand-made comparison, to the letter."""

from meds_openrlhf.evaluation.results import Comparison
from meds_openrlhf.evaluation.tables import sections
from tests.evaluation.measured import result

BASE_X = result("base", "x", "1122", "2222")
MEDS_X = result("meds|a", "x", "1122", "1-22")
BASE_Y = result("base", "y", "12", "12", "11", "13")
MEDS_Y = result("meds|a", "y", "11", "22", "11", "11")
DAPO_Y = result("dapo", "y", "11", "11", "23", "22")


def _section(comparison: Comparison, title: str) -> list[str]:
    """The lines of the table whose title begins with ``title``."""
    return next(table.splitlines() for heading, table in sections(comparison).items() if heading.startswith(title))


def test_the_papers_table() -> None:
    comparison = Comparison([BASE_X, MEDS_X, BASE_Y, MEDS_Y, DAPO_Y])
    assert next(iter(sections(comparison))) == "Pass@k (%), k = 1 and 2"
    assert _section(comparison, "Pass@k (%), k = 1") == [
        "| model   |  x pass@1 |  x pass@2 |  y pass@1 |   y pass@2 | Avg. pass@1 | Avg. pass@2 |",
        "|---------|----------:|----------:|----------:|-----------:|------------:|------------:|",
        "| base    |     25.00 |     41.67 |   *62.50* | **100.00** |       43.75 |       70.83 |",
        "| meds\\|a | **37.50** | **66.67** | **75.00** |    *75.00* |   **56.25** |       70.83 |",
        "| dapo    |           |           |     50.00 |      50.00 |             |             |",
    ]


def test_the_best_are_bold_where_another_is_lower() -> None:
    tied = [result("a", "x", "12"), result("b", "x", "11"), result("c", "x", "11")]
    assert _section(Comparison(tied), "Pass@k (%), k = 1")[2:5] == [
        "| a     |      50.00 |   100.00 |",
        "| b     | **100.00** |   100.00 |",
        "| c     | **100.00** |   100.00 |",
    ]


def test_the_second_best_are_in_italics_where_a_third_is_lower() -> None:
    four = [result("a", "x", "12"), result("b", "x", "11"), result("c", "x", "11"), result("d", "x", "22")]
    assert _section(Comparison(four), "Pass@k (%), k = 1")[2:6] == [
        "| a     |    *50.00* | **100.00** |",
        "| b     | **100.00** | **100.00** |",
        "| c     | **100.00** | **100.00** |",
        "| d     |       0.00 |       0.00 |",
    ]


def test_one_model_on_one_benchmark_is_neither_best_nor_an_average_nor_a_difference() -> None:
    comparison = Comparison([BASE_X])
    assert _section(comparison, "Pass@k (%), k = 1 and 4") == [
        "| model | x pass@1 | x pass@4 |",
        "|-------|---------:|---------:|",
        "| base  |    25.00 |    50.00 |",
    ]
    assert not any("Difference" in title or "Avg." in table for title, table in sections(comparison).items())
    assert _section(Comparison([result("base", "x", "1", "2")]), "Pass@k (%), k = 1")[0] == "| model | x pass@1 |"
