"""Charts as they come out on a screen: what can be read, and what is inside the window."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from benchmarks.report import Shape
from benchmarks.report import write_run as write_synthetic_run
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report import write_report
from tests.report.conftest import Opened
from tests.report.stored_runs import write_metrics

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One made-up run."""
    run = write_synthetic_run(tmp_path_factory.mktemp("runs") / "one", Shape(steps=8, prompts=16, visited=8))
    return write_report([run.root], run.report)


@pytest.mark.parametrize("width", [1280, 390])
def test_tips_stay_inside_the_window_and_cut_nothing_off(opened: Opened, tmp_path: Path, width: int) -> None:
    runs = [RunPaths(tmp_path / f"a-rather-long-name-of-a-run-as-people-give-them-{i}") for i in range(2)]
    for run in runs:
        write_metrics(run, 9, **{"meds/reward_shaped": 0.5, "timing/generation": 1.0})
    with opened(write_report([run.root for run in runs], tmp_path / "r.html"), "#curves", width=width) as page:
        for plot in page.locator(".plot").all():
            plot.locator("svg").focus()
            for _ in range(9):
                page.keyboard.press("ArrowRight")
                box = plot.locator(".tip").bounding_box()
                assert box is not None
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
                assert plot.locator(".tip td").evaluate_all("all => all.every(td => td.scrollWidth <= td.clientWidth)")


def test_labels_of_axes_can_be_read(opened: Opened, report: Path) -> None:
    height = "all => Math.min(...all.map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a))"
    for fragment in ("#curves", "#prompt=math-00001"):
        for width, least in ((1280, 10), (390, 9)):
            with opened(report, fragment, width=width) as page:
                assert page.locator(".chart .axes text").evaluate_all(height) >= least


def test_axes_have_units_and_diversity_begins_with_the_step(opened: Opened, report: Path) -> None:
    with opened(report, "#curves") as page:
        time = page.locator("figure", has=page.get_by_role("heading", name="Time of a step"))
        expect(time.locator(".axes text").last).to_have_text("step")
        assert (time.locator(".axes text").nth(1).text_content() or "").endswith(" s")
        ratio = page.locator("figure", has=page.get_by_role("heading", name="Top-1 eigen ratio"))
        pressed = ratio.locator(".legend button[aria-pressed=true]").all_inner_texts()
        assert pressed == ["wrong, step", "right, step"]
        expect(ratio.locator(".line")).to_have_count(2)
        expect(page.locator("main")).to_contain_text("Step: those of one step; window: those of the last steps")
        ratio.get_by_role("button", name="wrong, all").click()
        expect(ratio.locator(".line")).to_have_count(3)
