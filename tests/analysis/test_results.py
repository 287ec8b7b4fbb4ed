"""Tables, figures and numbers as they are left on disk."""

import argparse
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from analysis.results import figure_path, write_numbers
from meds_openrlhf.report.output import markdown_table, shown, write_figure


def test_a_table_is_markdown_and_lines_up() -> None:
    assert markdown_table(["run", "n"], [["meds", "7"], ["a", ""]]) == (
        "| run  |   n |\n|------|----:|\n| meds |   7 |\n| a    |     |"
    )


def test_what_is_not_there_is_empty() -> None:
    assert shown(None) == ""
    assert shown(1.005) == "1.00"
    assert shown(0.5, "+.1f") == "+0.5"


@pytest.mark.parametrize(("name", "start"), [("f.png", b"\x89PNG"), ("f.svg", b"<?xml")])
def test_the_suffix_is_the_format_and_equal_figures_are_equal_files(tmp_path: Path, name: str, start: bytes) -> None:
    contents = []
    for folder in ("one", "two"):
        figure = Figure()
        figure.subplots().plot([1, 2], [3, 4])
        write_figure(figure, tmp_path / folder / name)
        contents.append((tmp_path / folder / name).read_bytes())
    assert contents[0].startswith(start)
    assert contents[0] == contents[1]


def test_other_suffixes_are_refused_before_any_work() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"'f\.pdf' does not end in"):
        figure_path("f.pdf")


def test_numbers_are_json_without_nan(tmp_path: Path) -> None:
    write_numbers({"é": [1, None]}, tmp_path / "n.json")
    assert (tmp_path / "n.json").read_text() == '{\n  "é": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_numbers({"x": float("nan")}, tmp_path / "n.json")
