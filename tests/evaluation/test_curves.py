"""The picture shows what was measured."""

import numpy as np
import pytest

from meds_openrlhf.evaluation.curves import draw
from meds_openrlhf.evaluation.results import BenchmarkResult, Comparison
from meds_openrlhf.stats.figures import COLORS
from tests.evaluation.measured import result

BASE = [result("base", "x", "1222", "2222", "1122"), result("base", "y", "11", "12")]
MEDS = [result("meds", "x", "1222", "1222", "1122"), result("meds", "y", "11", "11")]


def test_panels_lines_and_bands_are_the_results() -> None:
    figure = draw(Comparison([*BASE, *MEDS]))
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
    figure = draw(Comparison(results))
    assert [axes.get_title().split(" (")[0] for axes in figure.axes if axes.get_title()] == titles


def test_a_model_has_one_color_in_all_panels_and_ticks_do_not_overlap() -> None:
    figure = draw(Comparison([BASE[0], *MEDS]))  # in the panel of y it is alone
    assert [axes.get_lines()[-1].get_color() for axes in figure.axes] == [COLORS[1]] * 3
    assert draw(Comparison([result("base", "x", "1" * 9)])).axes[0].get_xticks().tolist() == [1, 2, 4, 9]
