"""Tables, numbers and figures as they are left on disk."""

from pathlib import Path

import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from meds_openrlhf.stats.presentation import (
    COLORS,
    MARKERS,
    draw_curves,
    legend_below,
    look,
    markdown,
    panels,
    shown,
    write_figure,
    write_numbers,
)


def test_a_table_is_markdown_and_lines_up() -> None:
    table = pd.DataFrame([["meds", 7], ["a|b\n c", ""]], columns=["run", "n"])
    assert markdown(table) == "| run    |   n |\n|--------|----:|\n| meds   |   7 |\n| a\\|b c |     |"
    assert markdown(table[:1], left=2) == "| run  | n   |\n|------|-----|\n| meds | 7   |"
    assert markdown(table[:0]) == "| run |   n |\n|-----|----:|"


def test_numbers() -> None:
    assert [shown(None), shown(1.005), shown(0.5, "+.1f")] == ["", "1.00", "+0.5"]


def test_numbers_are_json_without_nan(tmp_path: Path) -> None:
    write_numbers({"é": [1, None]}, tmp_path / "n.json")
    assert (tmp_path / "n.json").read_text() == '{\n  "é": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_numbers({"x": float("nan")}, tmp_path / "n.json")


def test_panels_are_in_rows_with_their_axes_named() -> None:
    figure, grid = panels(["a", "b", "c", "d"], xlabel="k", ylabel="pass@k (%)")
    legend_below(figure, {"base": look(0), "meds": look(1)})
    assert [axes.get_title() for axes in grid] == ["a", "b", "c", "d"]
    assert [axes.get_xlabel() for axes in grid] == ["k"] * 4
    assert figure.get_supylabel() == "pass@k (%)"
    assert [axes.axison for axes in figure.axes] == [True] * 4 + [False] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["base", "meds"]
    assert pyplot.get_fignums() == []  # it would keep every figure


def test_curves_have_a_panel_for_each_metric_and_a_color_for_each_run() -> None:
    curve = pd.Series({1: 0.5, 4: 0.25})
    curves = {("a", "x"): curve, ("b", "x"): 2 * curve, ("b", "z"): curve}
    left, right = draw_curves(curves, {"x": "X", "y": "Y", "z": "Z"}, "ratio").axes
    assert (left.get_title(), right.get_title()) == ("X", "Z")
    lines = [(line.get_color(), line.get_xydata().tolist()) for line in (*left.lines, *right.lines)]
    values = [[[1, 0.5], [4, 0.25]], [[1, 1.0], [4, 0.5]], [[1, 0.5], [4, 0.25]]]
    assert lines == list(zip((COLORS[0], COLORS[1], COLORS[1]), values))


def test_many_series_look_different() -> None:
    looks = [tuple(look(position).values()) for position in range(len(COLORS) * len(MARKERS))]
    assert len(set(looks)) == len(looks)


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
