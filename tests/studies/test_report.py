"""Verdicts by the rule, and the report: all from the results alone, nothing left out silently."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.stats.estimates import bootstrap_interval, t_interval
from studies.report import differences_of, judge, main, pooled_interval, verdict_of, write_report
from studies.results import Result, read_results
from studies.study import Claim, Key, Run, Study, load_study
from tests.studies.small import result, small, write_results

REPOSITORY = Path(__file__).parents[2]
UNDECIDED = "cannot be decided with 5 seeds"
CLAIM = Claim(says="s", method="meds", than="dapo", metric="x/y")
CLAIMS = {
    "better": {"says": "MEDS is better", "method": "meds", "than": "dapo", "metric": "pass@1"},
    "lower": {"says": "lower", "method": "meds", "than": "dapo", "metric": "pass@1", "direction": "lower"},
}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    return small(tmp_path, claims=CLAIMS)


@pytest.mark.parametrize(
    ("low", "high", "changes", "verdict"),
    [
        (0.01, 0.03, {}, "holds"),
        (-0.01, 0.03, {}, UNDECIDED),
        (-0.03, -0.01, {}, "does not hold"),
        (0.0, 0.0, {}, UNDECIDED),
        (-0.01, 0.015, {"matters": 0.02}, "does not hold"),
        (0.005, 0.015, {"matters": 0.02}, "does not hold"),
        (0.005, 0.03, {"matters": 0.02}, "holds"),
        (-0.03, -0.005, {"matters": 0.02, "direction": "lower"}, "holds"),
        (-0.03, 0.01, {"matters": 0.02, "direction": "lower"}, UNDECIDED),
        (-0.015, 0.03, {"matters": 0.02, "direction": "lower"}, "does not hold"),
    ],
)
def test_an_interval_gives_a_verdict(low: float, high: float, changes: dict[str, Any], verdict: str) -> None:
    assert verdict_of((low, high), replace(CLAIM, **changes), 5) == verdict


def results_of(study: Study, score: Callable[[Run], float]) -> dict[Key, Result]:
    """Results whose metric x/y is ``score(run)``."""
    return {run.key: result(run, 2, curves={"x/y": [[1, score(run)]]}) for run in study.runs()}


def test_a_clear_difference_holds_whatever_seeds_and_tasks_do(study: Study) -> None:
    def score(run: Run) -> float:
        return 10 * (run.task == "chains") + run.seed + (0.1 + 0.01 * run.seed) * (run.method == "meds")

    verdict, gaps = judge(study, results_of(study, score), CLAIM)
    assert verdict == "holds"
    assert gaps == pytest.approx(np.array([[0.11, 0.12, 0.13, 0.14, 0.15]] * 2))
    low, high = bootstrap_interval(gaps)
    assert 0.1 < low < 0.13 < high < 0.16


@pytest.mark.parametrize(
    ("interval", "seeds", "verdict"),
    [
        ("t", 3, "holds"),
        ("t", 2, "cannot be decided with 2 seeds"),
        ("bootstrap", 4, "cannot be decided with 4 seeds"),
        ("bootstrap", 1, "cannot be decided with 1 seed"),
    ],
)
def test_few_seeds_decide_nothing(interval: str, seeds: int, verdict: str, tmp_path: Path) -> None:
    rule = {"primary": ["pass@1"], "last": 1, "interval": interval}
    study = small(tmp_path, seeds=list(range(seeds)), rule=rule)
    results = results_of(study, lambda run: (1 + run.seed / 100) * (run.method == "meds"))
    assert judge(study, results, CLAIM)[0] == verdict


def test_a_pooled_interval_has_the_error_of_all_methods(tmp_path: Path) -> None:
    rule = {"primary": ["pass@1"], "last": 1, "interval": "pooled"}
    noise = np.random.default_rng(0).normal(size=8)
    methods = {name: {"config": "dapo.yaml"} for name in ("dapo", "meds", "other")}
    one = {"sums": {"benchmarks": ["sums.jsonl"]}}
    two, three = (
        small(tmp_path, seeds=list(range(8)), tasks=one, rule=rule, methods=dict(list(methods.items())[:count]))
        for count in (2, 3)
    )

    def score(run: Run) -> float:
        return run.seed + 0.5 * (run.method == "meds") + noise[run.seed] * (run.method == "dapo")

    sides = ("meds", CLAIM.metric), ("dapo", CLAIM.metric)
    gaps, _ = differences_of(two, results_of(two, score), sides, ["sums"])
    assert pooled_interval(two, results_of(two, score), sides, gaps) == pytest.approx(t_interval(gaps))
    low, high = pooled_interval(three, results_of(three, score), sides, gaps)
    assert low > t_interval(gaps)[0]  # the third method, without noise, says that there is less
    assert (low + high) / 2 == pytest.approx(gaps.mean())
    with pytest.raises(ConfigError, match=r"rule\.interval=pooled: is for one task\."):
        small(tmp_path, rule=rule)
    claim = {"says": "it does", "method": "meds", "than": "dapo", "metric": "pass@1", "than_metric": "pass@2"}
    with pytest.raises(ConfigError, match=r"claims\.it\.than_metric=pass@2: has another error\."):
        small(tmp_path, tasks=one, rule=rule, claims={"it": claim})


def test_nothing_is_judged_before_all_runs_are_there(study: Study) -> None:
    results = results_of(study, lambda run: run.seed * float(run.method == "meds"))
    del results["chains", "meds", 2]
    verdict, gaps = judge(study, results, CLAIM)
    assert verdict == "not judged yet: 1 of 10 pairs are missing"
    assert gaps.tolist() == [[1, 3, 4, 5]] * 2


def test_a_run_without_the_metric_is_a_missing_pair(study: Study) -> None:
    results = results_of(study, lambda run: 1.0)
    results |= {run.key: result(run, 2) for run in study.runs() if run.method == "dapo"}
    verdict, gaps = judge(study, results, CLAIM)
    assert verdict == "not judged yet: 10 of 10 pairs are missing"
    assert gaps.shape == (2, 0)


def test_two_metrics_of_one_method_are_compared(study: Study) -> None:
    compared = {"metric": "agreement:a/b", "than": "meds", "than_metric": "agreement:c/d"}
    claim = replace(CLAIM, **compared, tasks=("sums",))
    results = {
        run.key: result(run, 2, agreement={"a/b": 0.8 + run.seed / 100, "c/d": 0.5})
        for run in study.runs()
        if run.key[:2] == ("sums", "meds")
    }
    assert judge(study, results, claim)[0] == "holds"


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
    assert main(["small.yaml", "--against", "meds+med"]) == 2
    assert capsys.readouterr().err == "error: --against=med: is not a method of this study. Did you mean meds?\n"
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


@pytest.mark.parametrize("name", ["laboratory", "laboratory-alpha", "forks", "corners", "forks-long", "forks-e"])
def test_the_committed_results_give_the_committed_tables(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert main([f"studies/{name}.yaml", "--out", str(tmp_path)]) == 0
    for file in ("report.md", "runs.csv"):
        assert (tmp_path / file).read_text() == Path("results", name, file).read_text()
    primary = [metric for metric in load_study(Path(f"studies/{name}.yaml")).rule.primary if "equal" not in metric]
    has_recorder = name != "forks-e"  # for the figure of eigen ratios
    assert len(list((tmp_path / "figures").iterdir())) == 1 + has_recorder + len(primary)


PAGE = (REPOSITORY / "docs/laboratory.md").read_text()


def rows_of(section: str) -> list[list[str]]:
    """Return the rows with an interval of the section's first table."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if "(" in row[1]]


@pytest.mark.parametrize(
    ("name", "section", "base", "count"),
    [
        ("forks", "A memory of errors", "dapo+dapo-again", 7),
        ("forks-long", "More steps, and training on what is not solved yet", "dapo", 2),
    ],
)
def test_the_laboratorys_page_has_the_second_studys_differences(
    name: str, section: str, base: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is a method, or "METHOD against METHOD", with its differences in the primary metrics, in points."""
    monkeypatch.chdir(REPOSITORY)
    study = load_study(Path(f"studies/{name}.yaml"))
    results, rows = read_results(study), rows_of(section)
    assert len(rows) == count
    for what, *cells in rows:
        method, _, other = what.partition(" against ")
        assert len(cells) == 4
        for metric, cell in zip(study.rule.primary, cells):  # of more, the text tells
            gaps, missing = differences_of(study, results, ((method, metric), (other or base, metric)), ("forks",))
            shown = [float(number) for number in re.findall(r"[-+]?\d+\.\d", cell)]
            assert shown == pytest.approx([100 * gaps.mean(), *(100 * end for end in t_interval(gaps))], abs=0.051)
            assert not missing


def test_the_laboratorys_page_has_the_differences_at_equal_pass_at_1() -> None:
    """With Student's intervals, in points: pass@k training's, weights' with extras, and both without step 0."""
    text = PAGE.partition("at *equal pass@1*")[2].partition("\n## ")[0].replace("\n", " ")
    shown = [tuple(map(float, found)) for found in re.findall(r"([-+]\d\.\d) \(([-+]\d\.\d) to ([-+]\d\.\d)\)", text)]
    rows = {(row[0], row[2]): row for row in table(REPOSITORY / "results/forks-long/report.md", "Paired differences")}
    metric = "pass@32/eval at equal pass@1"
    sides = [
        (name, method) for name in (metric, f"{metric} after step 0") for method in ("pass-at-k", "weights-extras")
    ]
    for found, side in zip(shown, sides, strict=True):
        known = [100 * float(end) for end in re.findall(r"[-+][\d.]+", " ".join((rows[side][3], rows[side][5])))]
        assert found == pytest.approx(known, abs=0.051)


def test_the_laboratorys_page_has_the_memory_of_successes() -> None:
    """With the study's pooled intervals, in points."""
    text = PAGE.partition("\n## A memory of successes\n")[2].partition("\n## ")[0]
    rows = table(REPOSITORY / "results/forks-e/report.md", "Paired differences")
    found = {(row[2], row[0]): row for row in rows}
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    head, *methods, _ = shown
    assert [row[0] for row in methods] == ["pass-at-k", "focal", "dapo-slow"]
    for method, *cells in methods:
        for metric, cell in zip(head[1:], cells, strict=True):
            wanted = " ".join(found[method, metric][3:5])
            known = [100 * float(number) for number in re.findall(r"[-+]\d+\.\d+", wanted)]
            assert [float(number) for number in re.findall(r"[-+]\d+\.\d", cell)] == pytest.approx(known, abs=0.051)


def test_the_laboratorys_page_has_the_first_studys_claims() -> None:
    """With Student's intervals, in points."""
    text = PAGE.partition("\n## The first study\n")[2].partition("\n### ")[0].replace("\n", " ")
    shown = [tuple(map(float, found)) for found in re.findall(r"([-+]\d\.\d) \(([-+]\d\.\d) to ([-+]\d\.\d)\)", text)]
    claims = {row[0]: row for row in table(REPOSITORY / "results/laboratory/report.md", "Claims")}
    assert len(shown) == 4
    for found, name in zip(shown, ("pass-at-1", "pass-at-32", "history", "rivals")):
        known = [100 * float(end) for end in re.findall(r"[-+][\d.]+", " ".join((claims[name][4], claims[name][6])))]
        assert found == pytest.approx(known, abs=0.051)


def test_the_laboratorys_page_is_short() -> None:
    assert len([word for word in PAGE.split() if re.search(r"\w", word)]) <= 2800
