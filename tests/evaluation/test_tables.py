"""Tables of a small hand-made comparison, to the letter."""

import csv
import io
import json

import pytest

from meds_openrlhf.evaluation.results import Comparison
from meds_openrlhf.evaluation.tables import csv_text, json_text, markdown
from tests.evaluation.measured import result

BASE_X = result("base", "x", "1122", "2222")
MEDS_X = result("meds|a", "x", "1122", "1-22")
BASE_Y = result("base", "y", "12", "12", "11", "13")
MEDS_Y = result("meds|a", "y", "11", "22", "11", "11")
DAPO_Y = result("dapo", "y", "11", "11", "23", "22")


def _section(text: str, title: str) -> list[str]:
    """The lines below the heading that begins with ``title``."""
    sections = {section.split("\n", 1)[0]: section.splitlines()[2:] for section in text.split("### ")[1:]}
    return next(lines for heading, lines in sections.items() if heading.startswith(title))


def test_the_papers_table() -> None:
    text = markdown(Comparison([BASE_X, MEDS_X, BASE_Y, MEDS_Y, DAPO_Y]))
    assert text.startswith("### Pass@k (%), k = 1 and 2\n\n| model ")
    assert _section(text, "Pass@k (%), k = 1") == [
        "| model   |  x pass@1 |  x pass@2 |  y pass@1 |   y pass@2 | Avg. pass@1 | Avg. pass@2 |",
        "|---------|----------:|----------:|----------:|-----------:|------------:|------------:|",
        "| base    |     25.00 |     41.67 |   *62.50* | **100.00** |       43.75 |       70.83 |",
        "| meds\\|a | **37.50** | **66.67** | **75.00** |    *75.00* |   **56.25** |       70.83 |",
        "| dapo    |           |           |     50.00 |      50.00 |             |             |",
        "",
    ]


def test_the_best_are_bold_where_another_is_lower() -> None:
    tied = [result("a", "x", "12"), result("b", "x", "11"), result("c", "x", "11")]
    assert _section(markdown(Comparison(tied)), "Pass@k (%), k = 1")[2:5] == [
        "| a     |      50.00 |   100.00 |",
        "| b     | **100.00** |   100.00 |",
        "| c     | **100.00** |   100.00 |",
    ]


def test_the_second_best_are_in_italics_where_a_third_is_lower() -> None:
    four = [result("a", "x", "12"), result("b", "x", "11"), result("c", "x", "11"), result("d", "x", "22")]
    assert _section(markdown(Comparison(four)), "Pass@k (%), k = 1")[2:6] == [
        "| a     |    *50.00* | **100.00** |",
        "| b     | **100.00** | **100.00** |",
        "| c     | **100.00** | **100.00** |",
        "| d     |       0.00 |       0.00 |",
    ]


def test_intervals_stand_in_a_second_table_of_the_same_layout() -> None:
    comparison = Comparison([BASE_X, MEDS_X, BASE_Y, MEDS_Y, DAPO_Y])
    header, _, base, _, dapo, _ = _section(markdown(comparison), "Intervals of 95%")
    assert [cell.strip() for cell in header.split("|")][1:4] == ["model", "x pass@1", "x pass@2"]
    estimate = BASE_X.pass_at[1]
    assert base.split("|")[2].strip() == f"{estimate.low * 100:.2f} – {estimate.high * 100:.2f}"
    estimate = comparison.averages["base"].pass_at[2]
    assert base.split("|")[7].strip() == f"{estimate.low * 100:.2f} – {estimate.high * 100:.2f}"
    assert [bool(cell.strip()) for cell in dapo.split("|")[1:-1]] == [True, False, False, True, True, False, False]


def test_differences_are_to_the_first_model() -> None:
    comparison = Comparison([BASE_X, MEDS_X, BASE_Y, MEDS_Y, DAPO_Y])
    _, _, meds, dapo, _ = _section(markdown(comparison), "Difference to base on the same problems")
    gain = comparison.differences["meds|a", "x"].pass_at[1]
    assert meds.split("|")[3].strip() == f"+12.50 ({gain.low * 100:+.2f} to {gain.high * 100:+.2f})"
    assert dapo.split("|")[4].strip().startswith("-12.50 (-")
    assert dapo.split("|")[2].strip() == ""


def test_every_k_and_the_samples() -> None:
    text = markdown(Comparison([BASE_X, MEDS_X]))
    assert _section(text, "Pass@k (%), every k") == [
        "| benchmark | model   | pass@1 | pass@2 | pass@4 |",
        "|-----------|---------|-------:|-------:|-------:|",
        "| x         | base    |  25.00 |  41.67 |  50.00 |",
        "| x         | meds\\|a |  37.50 |  66.67 | 100.00 |",
        "",
    ]
    assert _section(text, "Maj@k (%), every k") == [
        "| benchmark | model   | maj@1 | maj@2 | maj@4 |",
        "|-----------|---------|------:|------:|------:|",
        "| x         | base    | 25.00 | 25.00 | 25.00 |",
        # "1-22": of six pairs 1- wins, 12 12 are ties, -2 -2 22 are lost.
        "| x         | meds\\|a | 37.50 | 41.67 | 25.00 |",
        "",
    ]
    assert _section(text, "Samples") == [
        "| benchmark | model   | problems | samples per problem | cut at the length limit | unanswered | mean tokens |",
        "|-----------|---------|---------:|--------------------:|------------------------:|-----------:|------------:|",
        "| x         | base    |        2 |                   4 |                  0.00 % |     0.00 % |         4.0 |",
        "| x         | meds\\|a |        2 |                   4 |                 12.50 % |    12.50 % |         4.6 |",  # noqa: E501
    ]


def test_more_samples_of_one_benchmark_leave_empty_cells_at_the_others() -> None:
    assert _section(markdown(Comparison([BASE_X, BASE_Y])), "Pass@k (%), every k") == [
        "| benchmark | model | pass@1 | pass@2 | pass@4 |",
        "|-----------|-------|-------:|-------:|-------:|",
        "| x         | base  |  25.00 |  41.67 |  50.00 |",
        "| y         | base  |  62.50 | 100.00 |        |",
        "| Avg.      | base  |  43.75 |  70.83 |        |",
        "",
    ]


def test_one_model_on_one_benchmark_is_neither_best_nor_an_average_nor_a_difference() -> None:
    text = markdown(Comparison([BASE_X]))
    assert _section(text, "Pass@k (%), k = 1 and 4") == [
        "| model | x pass@1 | x pass@4 |",
        "|-------|---------:|---------:|",
        "| base  |    25.00 |    50.00 |",
        "",
    ]
    assert "Difference" not in text
    assert "Avg." not in text
    assert (
        _section(markdown(Comparison([result("base", "x", "1", "2")])), "Pass@k (%), k = 1")[0]
        == "| model | x pass@1 |"
    )


def test_csv_is_long_and_exact() -> None:
    comparison = Comparison([BASE_X, MEDS_X, BASE_Y, MEDS_Y, DAPO_Y])
    text = csv_text(comparison)
    assert text.startswith("model,benchmark,metric,k,value,low,high,problems,n\nbase,x,pass,1,0.25,")
    rows = list(csv.DictReader(io.StringIO(text)))
    # 3 ks and 2 of x and y, both metrics; averages have the ks that all share.
    assert len(rows) == 2 * (2 * 3 + 3 * 2) + 2 * (2 * 2)
    found = {(row["model"], row["benchmark"], row["metric"], int(row["k"])): row for row in rows}
    row = found["meds|a", "x", "pass", 4]
    estimate = MEDS_X.pass_at[4]
    assert (float(row["value"]), float(row["low"]), float(row["high"])) == (estimate.value, estimate.low, estimate.high)
    assert (row["problems"], row["n"]) == ("2", "4")
    row = found["base", "Avg.", "maj", 1]
    assert (float(row["value"]), row["problems"], row["n"]) == (pytest.approx(0.4375), "6", "2")
    assert ("dapo", "Avg.", "pass", 1) not in found


def test_json_holds_everything() -> None:
    comparison = Comparison([BASE_X, MEDS_X, BASE_Y, MEDS_Y, DAPO_Y])
    content = json.loads(json_text(comparison))
    assert content["level"] == 0.95
    assert [(entry["model"], entry["benchmark"]) for entry in content["results"]] == list(comparison.results)
    entry, estimate = content["results"][1], MEDS_X.majority_at[2]
    assert entry["maj"]["2"] == {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    assert (entry["problems"], entry["n"], entry["truncated_share"], entry["mean_tokens"]) == (2, 4, 0.125, 4.625)
    assert entry["unanswered_share"] == 0.125
    assert [entry["model"] for entry in content["averages"]] == ["base", "meds|a"]
    assert content["averages"][1]["pass"]["1"]["value"] == pytest.approx(0.5625)
    assert [(entry["model"], entry["baseline"], entry["benchmark"]) for entry in content["differences"]] == [
        ("meds|a", "base", "x"),
        ("meds|a", "base", "y"),
        ("dapo", "base", "y"),
    ]
    assert content["differences"][2]["pass"]["2"]["value"] == pytest.approx(-0.5)
    assert content["average_differences"][0]["pass"]["1"]["value"] == pytest.approx(0.125)
