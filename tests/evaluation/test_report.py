"""The report's folder: five files, the same bytes for the same results, whole or not there."""

import os
from pathlib import Path

import pytest

from meds_openrlhf.evaluation.report import write_report
from meds_openrlhf.evaluation.results import Comparison
from meds_openrlhf.evaluation.settings import Settings
from meds_openrlhf.evaluation.tables import csv_text, json_text, markdown
from tests.evaluation.measured import result

RESULTS = [result("base", "x", "1222", "2222"), result("meds", "x", "1222", "1122")]
FILES = ["pass_at_k.png", "report.md", "results.json", "table.csv", "table.md"]


def test_the_files_hold_tables_and_picture(tmp_path: Path) -> None:
    folder = tmp_path / "eval" / "report"
    write_report(folder, RESULTS)
    comparison = Comparison(RESULTS)
    assert sorted(os.listdir(folder)) == FILES
    assert (folder / "table.md").read_text() == markdown(comparison)
    assert (folder / "table.csv").read_text() == csv_text(comparison)
    assert (folder / "results.json").read_text() == json_text(comparison)
    assert (folder / "pass_at_k.png").read_bytes().startswith(b"\x89PNG\r\n")
    page = (folder / "report.md").read_text()
    assert page.startswith("# base, meds on x\n\n![pass@k over k](pass_at_k.png)\n\n### Pass@k (%), k = 1 and 4\n")
    assert markdown(comparison) in page
    assert "10,000 Bayesian bootstrap weightings" in page


def test_the_page_says_what_it_was_made_with(tmp_path: Path) -> None:
    settings = {
        "base": Settings("Qwen/Q", "f00d", 1.0, 0.95, 0, 7168, {}),
        "meds": Settings("/r", "", 1, 0.95, 7, 80, {}),
    }
    write_report(tmp_path, RESULTS, settings)
    page = (tmp_path / "report.md").read_text()
    assert page.split("### Models and sampling\n\n")[1].split("\n\n### ")[0].splitlines() == [
        "n = 4 samples of every problem. Benchmarks: x (2 problems).",
        "",
        "| label | model  | temperature | top-p | seed | max tokens |",
        "|-------|--------|------------:|------:|-----:|-----------:|",
        "| base  | Qwen/Q |           1 |  0.95 |    0 |       7168 |",
        "| meds  | /r     |           1 |  0.95 |    7 |         80 |",
    ]


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_report(tmp_path / name, RESULTS)
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_report_replaces_the_one_before(tmp_path: Path) -> None:
    write_report(tmp_path, RESULTS[:1])
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    write_report(tmp_path, RESULTS)
    assert sorted(os.listdir(tmp_path)) == FILES
    assert all((tmp_path / name).read_bytes() != before[name] for name in FILES)


def test_results_that_cannot_be_compared_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="several results on a benchmark"):
        write_report(tmp_path, [*RESULTS, RESULTS[0]])
    assert os.listdir(tmp_path) == []
