"""The report: everything in one page, from the results alone, with nothing left out silently."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.study.plan import StudyRun, runs_of
from meds_openrlhf.study.report import PAGE, write_study_report
from meds_openrlhf.study.results import result_file, write_result
from meds_openrlhf.study.study_file import load_study
from tests.study.studies import result, study, write_results, write_study

CLAIMS = {
    "better": {"says": "MEDS <is> better | always", "method": "meds", "than": "dapo", "metric": "pass@1"},
    "lower": {"says": "lower", "method": "meds", "than": "dapo", "metric": "pass@1", "direction": "lower"},
}


@pytest.fixture
def runs(tmp_path: Path) -> list[StudyRun]:
    """MEDS has one more right sample of four; clusters agree with mistakes."""
    given = study(tmp_path, claims=CLAIMS)
    return write_results(given, lambda run: 2 + (run.method == "meds"), agreement={"all/paper": 0.75})


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


def test_verdicts_tables_and_figures(runs: list[StudyRun], tmp_path: Path) -> None:
    out = tmp_path / "out"
    page, verdicts = write_study_report(runs, out)
    assert {one.name: one.verdict for one in verdicts} == {"better": "holds", "lower": "does not hold"}
    names = ("curves-pass-1", "curves-pass-4", "differences", "pass-at-k", "eigen-ratio", "agreement")
    assert {file.name for file in (out / "figures").iterdir()} == {f"{a}.{b}" for a in names for b in ("svg", "png")}
    claim = rows(out / "claims.csv")[0]
    assert (claim["difference"], claim["interval"], claim["seeds"]) == ("+0.2500", "+0.2500 to +0.2500", "5")
    score = rows(out / "scores.csv")[1]
    assert (score["task"], score["method"], score["pass@1"], score["seeds"]) == ("sums", "meds", "0.7500", "5 of 5")
    assert rows(out / "differences.csv")[0]["probability of improvement"] == "1.00"
    assert rows(out / "agreement.csv")[0]["all/paper"] == "0.7500"
    assert len(rows(out / "runs.csv")) == 20
    markdown = (out / "report.md").read_text()
    assert "| better | MEDS <is> better \\| always | pass@1, meds - dapo | holds" in markdown
    assert "2 x 2 x 5 runs (tasks x methods x seeds) of 6 steps: 20 done." in markdown
    html = page.read_text()
    assert page == out / PAGE
    assert "MEDS &lt;is&gt; better | always" in html
    assert html.count("data:image/svg+xml;base64,") == len(names)
    assert not re.search(r"<script|https?://", html)


def test_missing_and_failed_runs_are_shown(runs: list[StudyRun], tmp_path: Path) -> None:
    result_file(runs[0].study, "gcd-meds-3").unlink()
    failed = next(run for run in runs if run.name == "sums-dapo-2")
    write_result(failed.study, failed.name, replace(result(failed, 0), right={}, failed="meds: out of <memory>"))
    page, verdicts = write_study_report(runs, tmp_path / "out")
    assert verdicts[0].verdict == "not judged yet: 2 of 10 pairs are missing"
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert ": 18 done, 1 failed, 1 missing." in markdown
    assert re.search(r"\| sums-dapo-2 +\| failed +\| 0/6 +\| meds: out of <memory> \|", markdown)
    assert re.search(r"\| gcd-meds-3 +\| missing \|", markdown)
    assert "<td>sums-dapo-2</td><td>failed</td>" in page.read_text()
    scores = {(row["task"], row["method"]): row["seeds"] for row in rows(tmp_path / "out" / "scores.csv")}
    assert scores["gcd", "meds"] == scores["sums", "dapo"] == "4 of 5"
    missing = {row["tasks"]: (row["pairs"], row["seeds"]) for row in rows(tmp_path / "out" / "differences.csv")}
    assert missing == {"all": ("2 missing", "3"), "sums": ("1 missing", "4"), "gcd": ("1 missing", "4")}


def test_a_study_without_results_has_a_report(tmp_path: Path) -> None:
    page, verdicts = write_study_report(runs_of(study(tmp_path)), tmp_path / "out")
    assert verdicts[0].verdict == "not judged yet: 10 of 10 pairs are missing"
    assert page.read_text().count("<td>missing</td>") > 20
    assert not (tmp_path / "out" / "figures").exists()


def test_results_elsewhere_give_the_same_files(runs: list[StudyRun], tmp_path: Path) -> None:
    write_study_report(runs, tmp_path / "one")
    moved = tmp_path / "committed"
    runs[0].study.results.rename(moved)
    again = load_study(write_study(tmp_path, claims=CLAIMS), tmp_path / "no-runs", moved)
    write_study_report(runs_of(again), tmp_path / "two")
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 19
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
