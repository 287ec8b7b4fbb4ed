"""The report: everything from the results alone, nothing left out silently, and the laboratory's figures again."""

import re
from pathlib import Path

import pytest

from meds_openrlhf.stats.paired import t_interval
from studies.report import main, write_report
from studies.results import read_results
from studies.study import Run, Study, load_study
from studies.verdicts import differences_of
from tests.studies.small import small, write_results

REPOSITORY = Path(__file__).parents[2]
CLAIMS = {
    "better": {"says": "MEDS is better", "method": "meds", "than": "dapo", "metric": "pass@1"},
    "lower": {"says": "lower", "method": "meds", "than": "dapo", "metric": "pass@1", "direction": "lower"},
}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    return small(tmp_path, claims=CLAIMS)


@pytest.fixture
def runs(study: Study) -> list[Run]:
    """MEDS has one more right sample of four; clusters agree with mistakes."""
    return write_results(study, lambda run: 2 + (run.method == "meds"), agreement={"all/paper": 0.75})


def table(report: Path, title: str) -> list[list[str]]:
    """The rows of a table in report.md, without its header."""
    _, _, text = report.read_text().partition(f"## {title}\n\n")
    rows = [line.strip("|").split("|") for line in text.partition("\n\n")[0].splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_verdicts_tables_and_figures(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["small.yaml", "--out", "out"]) == 0
    assert capsys.readouterr().out == "better: holds\nlower: does not hold\n"
    names = ("curves-pass-1", "curves-pass-4", "pass-at-k", "eigen-ratio")
    assert {path.name for path in Path("out/figures").iterdir()} == {f"{name}.png" for name in names}
    report = Path("out/report.md")
    assert table(report, "Claims")[0] == [
        *("better", "MEDS is better", "pass@1, meds - dapo", "holds"),
        *("+0.2500", "+0.2500 to +0.2500", "+0.2500 to +0.2500", "5"),
    ]
    assert [row[:4] for row in table(report, "Paired differences")] == [
        [metric, tasks, "meds", difference]
        for metric, difference in (("pass@1", "+0.2500"), ("pass@4", "+0.0000"))
        for tasks in ("all", "sums", "chains")
    ]
    assert table(report, "Agreement of clusters with known mistakes")[0] == ["sums", "dapo", "0.7500"]
    assert Path("out/runs.csv").read_text().count("\n") - 1 == 20


def test_differences_to_another_method(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["small.yaml", "--against", "meds"]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:6]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0] == ["pass@1", "all", "dapo", "-0.2500", "-0.2500 to -0.2500"]
    assert {row[0] for row in rows} > {"pass@4", "meds/eigen_ratio_within_window"}
    assert main(["small.yaml", "--against", "med"]) == 2
    assert capsys.readouterr().err == "error: --against=med: is no method. Did you mean meds?\n"
    assert not Path("results/small/report.md").exists()


def test_missing_runs_are_shown(study: Study, runs: list[Run]) -> None:
    for run in runs:
        if run.name in ("chains-meds-3", "sums-dapo-2"):
            run.result.unlink()
    assert write_report(study, Path("out"))["better"] == "not judged yet: 2 of 10 pairs are missing"
    found = {tuple(line.split(",")[:3]) for line in Path("out/runs.csv").read_text().splitlines()[1:]}
    assert {(run.task, run.method, str(run.seed)) for run in runs} - found == {
        ("sums", "dapo", "2"), ("chains", "meds", "3"),
    }  # fmt: skip
    differences = {row[1]: row[-2:] for row in table(Path("out/report.md"), "Paired differences")}
    assert differences == {"all": ["3", "2 missing"], "sums": ["4", "1 missing"], "chains": ["4", "1 missing"]}


def test_a_study_without_results_has_a_report(study: Study) -> None:
    assert write_report(study, Path("out"))["better"] == "not judged yet: 10 of 10 pairs are missing"
    assert Path("out/runs.csv").read_text().count("\n") == 1
    assert not Path("out/figures").exists()


@pytest.mark.parametrize("name", ["laboratory", "laboratory-alpha", "forks", "corners", "forks-long"])
def test_the_committed_results_give_the_committed_tables(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert main([f"studies/{name}.yaml", "--out", str(tmp_path)]) == 0
    for file in ("report.md", "runs.csv"):
        assert (tmp_path / file).read_text() == Path("results", name, file).read_text()
    primary = load_study(Path(f"studies/{name}.yaml")).rule.primary
    assert len(list((tmp_path / "figures").iterdir())) == 2 + len(primary)


def test_the_laboratorys_page_has_the_tables_differences() -> None:
    """With their intervals, in points."""
    text, compared = (REPOSITORY / "docs/laboratory.md").read_text(), 0
    for name in ("laboratory", "laboratory-alpha"):
        rows = table(REPOSITORY / "results" / name / "report.md", "Paired differences")
        points = {tuple(row[:3]): [float(end) for end in re.findall(r"[-+][\d.]+", " ".join(row[3:5]))] for row in rows}
        tasks = sorted({task for _, task, _ in points} - {"all"}) or ["all"]
        for task, method in dict.fromkeys((task, method) for _, task, method in points if task in tasks):
            gaps = [[100 * end for end in points[metric, task, method]] for metric in ("pass@1", "pass@32")]
            if all(gaps):
                cells = [f"{gap:+.1f} ({low:+.1f} to {high:+.1f})" for gap, low, high in gaps]
                assert f"| {method} | {' | '.join(cells)} |" in text
                compared += 1
    assert compared == 19


def test_the_laboratorys_page_has_the_claims_differences_and_both_intervals() -> None:
    text = (REPOSITORY / "docs/laboratory.md").read_text().partition("| claim | difference, bootstrap |")[2]
    rows = [line.split("|") for line in text.partition("\n\n")[0].splitlines()[2:]]
    claims = table(REPOSITORY / "results/laboratory/report.md", "Claims")
    assert len(rows) == len(claims) == 10
    for row, claim in zip(rows, claims):
        unit = 1 if claim[0] == "eigen-ratio" else 100  # the others are in points
        shown, known = (re.findall(r"[-+][\d.]+", " ".join(cells)) for cells in (row[2:4], claim[4:7]))
        assert len(shown) == 5
        assert [float(end) for end in shown] == pytest.approx([unit * float(end) for end in known], abs=0.00051 * unit)


@pytest.mark.parametrize(
    ("name", "start", "end", "count"),
    [
        ("forks", "### What was found", "### Three times", 12),
        ("corners", "### The two other", "### Layer", 2),
        ("forks-long", "### Three times", "## The paper's claims", 3),
    ],
)
def test_the_second_studys_page_has_the_differences(
    name: str, start: str, end: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are "METHOD [against METHOD]", or a task in which the last method is against the first."""
    monkeypatch.chdir(REPOSITORY)
    study = load_study(Path(f"studies/{name}.yaml"))
    results, compared = read_results(study), 0
    first, *_, last = study.methods
    text = Path("docs/laboratory.md").read_text().partition(start)[2].partition(end)[0]
    for row in re.findall(r"^\| ([a-z].*) \|$", text, flags=re.MULTILINE):
        what, *cells = row.split(" | ")
        method, _, base = what.replace("against DAPO", "").strip().partition(" against ")
        task, method = (method, last) if method in study.tasks else (next(iter(study.tasks)), method)
        if method not in study.methods or "(" not in cells[0]:
            continue  # a table of something else
        for metric, cell in zip(study.rule.primary, cells):
            gaps, missing = differences_of(study, results, ((method, metric), (base or first, metric)), (task,))
            shown = [float(number) for number in re.findall(r"[-+]?\d+\.\d", cell)]
            assert shown == pytest.approx([100 * gaps.mean(), *(100 * end for end in t_interval(gaps))], abs=0.051)
            assert not missing
        compared += 1
    assert compared == count
