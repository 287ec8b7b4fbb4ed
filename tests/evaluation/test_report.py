"""The report's folder: all labels that can be compared, the same bytes for the same results, whole or not there."""

import json
import os
from dataclasses import replace
from pathlib import Path

from meds_openrlhf.evaluation.problems import Benchmark, Problem
from meds_openrlhf.evaluation.report import write_report, write_report_of_labels
from meds_openrlhf.evaluation.samples import Sample, SampleStore
from meds_openrlhf.evaluation.settings import Settings, problems_hash, write_settings
from tests.evaluation.measured import result

RESULTS = [result("base", "x", "1222", "2222"), result("meds", "x", "1222", "1122")]
FILES = ["pass_at_k.png", "report.md", "results.json", "table.csv", "table.md"]
PROBLEMS = [Problem("1", "2+2", "4"), Problem("2", "2+3", "5")]
BENCHMARK = Benchmark("sums", PROBLEMS)
SETTINGS = Settings("m", "f00d", 1.0, 1.0, 0, 7168, {"sums": problems_hash(PROBLEMS)})


def make_label(out: Path, label: str, n: int, settings: Settings = SETTINGS) -> None:
    write_settings(out / label, settings)
    with SampleStore(out / label / "sums.jsonl") as store:
        store.append([Sample(one.id, index, "", 1, False, "4", index == 0) for one in PROBLEMS for index in range(n)])


def report(out: Path, n: int, first: list[str]) -> tuple[list[str], list[str]]:
    lines: list[str] = []
    write_report_of_labels(out, SETTINGS, [BENCHMARK], n, first, lines.append)
    models = list(dict.fromkeys(line.split(",")[0] for line in (out / "table.csv").read_text().splitlines()[1:]))
    assert json.loads((out / "results.json").read_text())
    return models, lines


def test_all_that_can_be_compared_and_a_line_for_the_others(tmp_path: Path) -> None:
    make_label(tmp_path, "base", 4)
    make_label(tmp_path, "run", 8)
    make_label(tmp_path, "another", 4)
    make_label(tmp_path, "colder", 4, replace(SETTINGS, temperature=0.6))
    make_label(tmp_path, "begun", 2)
    (tmp_path / "no-label").mkdir()
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "settings.json").write_text('{"editor.rulers": [120]}')
    models, lines = report(tmp_path, 4, ["run", "base"])
    assert models == ["run", "base", "another"]
    strange = lines.pop(0)
    assert strange.startswith(f".vscode is left out of the report: {tmp_path}/.vscode/settings.json cannot be read as")
    assert lines == [
        "begun is left out of the report on sums: 4 samples are missing",
        "colder is left out of the report: temperature 0.6",
    ]
    origin = (tmp_path / "report.md").read_text().split("### Models and sampling")[1]
    assert [line.split()[1] for line in origin.splitlines() if line.startswith("| ")] == ["label", *models]
    assert report(tmp_path, 2, [])[0] == ["another", "base", "begun", "run"]


def test_the_same_results_give_the_same_bytes_and_others_replace_them(tmp_path: Path) -> None:
    for name, results in (("one", RESULTS), ("two", RESULTS[:1]), ("two", RESULTS)):
        write_report(tmp_path / name, results, {"base": SETTINGS, "meds": SETTINGS})
    assert sorted(os.listdir(tmp_path / "two")) == FILES
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
