"""The report's folder, its tables and curves: all labels that can be compared, whole or not there.

The report of a small evaluation is what is stored in tests/evaluation/stored, digit by digit. If a change is meant,
this writes the files again: python -m tests.evaluation.test_report
"""

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from meds_openrlhf.evaluation.report import draw_curves, sections, write_report, write_report_of_labels
from meds_openrlhf.evaluation.request import Problem, Settings, problems_hash, write_settings
from meds_openrlhf.evaluation.results import BenchmarkResult, Comparison
from meds_openrlhf.evaluation.samples import Sample, SampleStore
from meds_openrlhf.stats.presentation import COLORS
from tests.evaluation.measured import result

RESULTS = [result("base", "x", "1222", "2222"), result("meds", "x", "1222", "1122")]
STORED = Path(__file__).parent / "stored"
FILES = ["report.md", "results.json", "table.csv", "table.md"]
BASE = [result("base", "x", "1222", "2222", "1122"), result("base", "y", "11", "12")]
MEDS = [result("meds", "x", "1222", "1222", "1122"), result("meds", "y", "11", "11")]
PROBLEMS = [Problem("1", "2+2", "4"), Problem("2", "2+3", "5")]
SETTINGS = Settings("m", "f00d", 1.0, 1.0, 0, 7168, {"sums": problems_hash(PROBLEMS)})


def make_label(out: Path, label: str, n: int, settings: Settings = SETTINGS) -> None:
    write_settings(out / label, settings)
    with SampleStore(out / label / "sums.jsonl") as store:
        store.append([Sample(one.id, index, "", 1, False, "4", index == 0) for one in PROBLEMS for index in range(n)])


def report(out: Path, n: int, first: list[str]) -> tuple[list[str], list[str]]:
    lines: list[str] = []
    write_report_of_labels(out, SETTINGS, {"sums": PROBLEMS}, n, first, lines.append)
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
    names = os.listdir(tmp_path / "two")
    assert sorted(names) == ["pass_at_k.png", *FILES]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


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


def test_report_of_one_model_has_no_best_average_or_difference() -> None:
    comparison = Comparison([result("base", "x", "1122", "2222")])
    assert _section(comparison, "Pass@k (%), k = 1 and 4") == [
        "| model | x pass@1 | x pass@4 |",
        "|-------|---------:|---------:|",
        "| base  |    25.00 |    50.00 |",
    ]
    assert not any("Difference" in title or "Avg." in table for title, table in sections(comparison).items())
    assert _section(Comparison([result("base", "x", "1", "2")]), "Pass@k (%), k = 1")[0] == "| model | x pass@1 |"


def test_panels_lines_and_bands_are_the_results() -> None:
    figure = draw_curves(Comparison([*BASE, *MEDS]))
    panels = {axes.get_title(): axes for axes in figure.axes}
    assert list(panels) == ["x (3 problems)", "y (2 problems)", "average (2 benchmarks)"]
    assert figure.get_suptitle() == "n = 2 and 4, bands: 95 % intervals"
    panel = panels["x (3 problems)"]
    base, meds = panel.get_lines()
    assert np.asarray(base.get_xdata()).tolist() == [1, 2, 4]
    assert np.asarray(meds.get_ydata()).tolist() == (100 * MEDS[0].curves.loc["pass"].value).tolist()
    band = panel.collections[0].get_paths()[0].vertices
    curve = 100 * BASE[0].curves.loc["pass"]
    assert np.asarray(band)[:, 1].min() == pytest.approx(curve.low.min())
    assert np.asarray(band)[:, 1].max() == pytest.approx(curve.high.max())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["base", "meds"]


@pytest.mark.parametrize(
    ("results", "titles"),
    [
        (BASE[:1], ["x"]),
        ([*BASE, MEDS[0]], ["x", "y", "average"]),
        ([BASE[0], MEDS[1]], ["x", "y"]),  # nobody has both, so there is no average
    ],
)
def test_panels_of_what_there_is(results: list[BenchmarkResult], titles: list[str]) -> None:
    figure = draw_curves(Comparison(results))
    assert [axes.get_title().split(" (")[0] for axes in figure.axes if axes.get_title()] == titles


def test_a_model_has_one_color_in_all_panels_and_ticks_do_not_overlap() -> None:
    figure = draw_curves(Comparison([BASE[0], *MEDS]))  # in the panel of y it is alone
    assert [axes.get_lines()[-1].get_color() for axes in figure.axes] == [COLORS[1]] * 3
    assert draw_curves(Comparison([result("base", "x", "1" * 9)])).axes[0].get_xticks().tolist() == [1, 2, 4, 9]


def _results() -> list[BenchmarkResult]:
    """Three models on two benchmarks, the last without the second; of the first benchmark there are more samples."""
    generator, found = random.Random(3), []
    for model, right in (("base", 2), ("dapo|1", 3), ("meds", 5)):
        for benchmark, problems, n in (("aime", 6, 12), ("minerva", 9, 6)):
            letters = ["".join(generator.choices("1234-", [right, 2, 2, 1, 1], k=n)) for _ in range(problems)]
            if (model, benchmark) != ("meds", "minerva"):
                found.append(result(model, benchmark, *letters))
    return found


def write(folder: Path) -> None:
    """Write the report, as `meds eval` does."""
    settings = {name: Settings(f"models/{name}", name, 1.0, 0.95, 7, 80, {}) for name in ("base", "dapo|1", "meds")}
    write_report(folder, _results(), settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("report")
    write(found)
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_report_is_what_is_stored(name: str, folder: Path) -> None:
    assert (folder / name).read_text() == (STORED / name).read_text()


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        write(Path(scratch))
        for file in FILES:
            (STORED / file).write_text((Path(scratch) / file).read_text())
