"""The report in a real browser: what a reader clicks, and what is shown then."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from benchmarks.report import Shape
from benchmarks.report import write_run as write_synthetic_run
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report import Limits, write_report
from tests.report.conftest import Opened
from tests.report.stored_runs import RUN, Rollout, write_config, write_log, write_memory, write_metrics, write_run
from tests.report.test_themes import KINDS, LATER, SUMS

pytestmark = pytest.mark.e2e

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\u2028@@script@@'\"&amp;\x00"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two made-up runs, the second with other settings."""
    folder = tmp_path_factory.mktemp("runs")
    one = write_synthetic_run(folder / "one", Shape(steps=8, prompts=16, visited=8, characters=200))
    other = write_synthetic_run(folder / "other", Shape(steps=6, prompts=16, visited=8, preset="paper", seed=1))
    return write_report([one.root, other.root], folder / "report.html")


def test_the_overview_says_what_was_run_and_where_runs_differ(opened: Opened, report: Path) -> None:
    with opened(report, "#overview") as page:
        expect(page.locator("h1")).to_have_text("2 runs")
        expect(page.locator(".card h2")).to_have_text(["one", "other"])
        expect(page.locator(".card").first).to_contain_text("GRPO, MEDS (robust, alpha 0.1, beta 0.2)")
        expect(page.locator(".differs th")).to_have_text(["meds.memory.presetdiffers"])
        expect(page.locator(".differs td")).to_have_text(["robust", "paper"])
        rows = page.locator(".settings tbody tr").count()
        expect(page.locator("#whatif h3")).to_have_text(["one", "other"])
        expect(page.locator("#whatif tbody").first.locator("th")).to_have_count(7)
        page.get_by_role("button", name="Show all").click()
        assert page.locator(".settings tbody tr").count() > rows


def test_the_first_page_shows_themes_with_examples_and_leads_to_their_clusters(opened: Opened, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [KINDS, LATER])
    with opened(write_report([run.root], run.report)) as page:
        expect(page.locator("h1")).to_have_text("What the policy keeps getting wrong")
        expect(page.locator(".lead")).to_contain_text("12 wrong rollouts; 100% of them are in a theme")
        expect(page.locator(".lead b")).to_have_text("89% → 80%")
        expect(page.locator(".theme .name")).to_have_text([SUMS, "“guess”"])
        expect(page.locator(".theme .change b")).to_have_text(["44% → 80%", "44% → 0%"])
        expect(page.locator(".theme .fate")).to_have_text(["● still there", "○ gone"])
        first, second = page.locator(".theme").all()
        expect(first.locator(".asked")).to_have_text(["What is 2*3?", "What is 4*7?"])
        expect(first.locator(".response .answer")).to_have_text(["2+3=5", "4+7=11"])
        expect(second.locator(".response").first).to_be_hidden()
        second.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(second.locator(".response .answer")).to_have_text(["guess", "0", "guess", "0"])
        second.get_by_role("link", name="All 2 clusters of this theme").click()
        expect(page.locator(".list tbody tr")).to_have_count(2)
        expect(page.locator(".controls")).to_contain_text("Theme “guess”")
        page.reload()
        expect(page.locator(".list tbody .chip")).to_have_text(["0 ×2", "0 ×2"])
        page.get_by_role("link", name="Theme").click()
        expect(page.locator(".list tbody tr")).to_have_count(4)


def test_of_two_runs_what_the_second_lost_comes_first(opened: Opened, tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [KINDS])
    other = write_run(tmp_path / "other", [[rollout for rollout in KINDS if rollout.mode != 2]])
    with opened(write_report([one.root, other.root], one.report)) as page:
        expect(page.locator(".theme .name")).to_have_text(["“guess”", SUMS])
        expect(page.locator(".theme").first.locator(".move").nth(1)).to_contain_text("−45.0 points")


def test_curves_show_values_of_all_runs_and_hide_what_is_switched_off(opened: Opened, report: Path) -> None:
    with opened(report, "#curves") as page:
        reward = page.locator("figure", has=page.get_by_role("heading", name="Reward", exact=True))
        assert reward.locator(".line").count() == 4
        reward.locator("svg.chart").focus()
        page.keyboard.press("Home")
        first = json.loads(RunPaths(report.parent / "one").metrics.read_text().splitlines()[0])
        shown = float(reward.locator(".tip td.num").first.inner_text())
        assert shown == pytest.approx(first["meds/reward_raw"], abs=1e-3)
        page.keyboard.press("End")
        expect(reward.locator(".tip b")).to_have_text("step 8")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        expect(reward.locator(".tip b")).to_have_text("step 6")
        expect(reward.locator(".tip tr")).to_have_count(4)
        expect(reward.locator(".tip tr").first).to_contain_text("one · raw")
        reward.get_by_role("button", name="shaped").click()
        expect(reward.locator(".line")).to_have_count(2)
        page.locator(".runs button", has_text="other").click()
        expect(reward.locator(".line.c1")).to_have_count(0)
        expect(reward.locator(".line.c0")).to_have_count(1)  # shaped stays off
        page.locator("#smoothing").fill("0.5")
        expect(reward.locator(".line.raw")).to_have_count(1)
        expect(page.get_by_role("heading", name="pass@k on aime24")).to_be_visible()
        expect(page.get_by_role("heading", name="Time of a step: one")).to_be_visible()
        page.get_by_text("All other metrics").click()
        expect(page.get_by_role("heading", name="actor_lr")).to_be_visible()


def test_the_list_is_sorted_searched_and_paged(opened: Opened, report: Path) -> None:
    with opened(report, "#atlas") as page:
        sizes = [int(text) for text in page.locator(".list tbody td.strong").all_inner_texts()]
        assert sizes == sorted(sizes, reverse=True)
        assert len(sizes) == 25
        expect(page.locator("th[aria-sort=descending]")).to_contain_text("Size")
        page.get_by_role("button", name="Size").click()
        expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Size")
        expect(page.locator(".list tbody td.strong").first).to_have_text("2")
        page.get_by_role("button", name="next page").click()
        expect(page.locator(".pager span")).to_contain_text("page 2 of")
        page.get_by_role("button", name="Prompt").click()
        expect(page.locator(".list tbody a").first).to_contain_text("Problem 0:")
        page.get_by_label("Search").fill("problem 3:")
        expect(page.locator(".list tbody a mark").first).to_have_text("Problem 3:")
        assert {text[:10] for text in page.locator(".list tbody a").all_inner_texts()} == {"Problem 3:"}
        page.get_by_label("Search").fill("nowhere to be found")
        expect(page.locator("p[role=status]")).to_have_text("No cluster fits.")
        expect(page.locator("p[role=status][aria-busy=false]")).to_be_visible()
        assert "null" not in page.locator("main").inner_text()


def test_the_address_holds_the_list_as_it_is_shown(opened: Opened, report: Path) -> None:
    with opened(report, "#atlas") as page:
        page.get_by_role("button", name="Share").click()
        page.get_by_role("button", name="Share").click()
        page.get_by_role("button", name="alive").click()
        page.get_by_role("button", name="next page").click()
        expect(page).to_have_url(f"{report.as_uri()}#atlas&run=0&which=alive&sort=share&page=2")
        shown = page.locator(".list tbody a").all_inner_texts()
        page.locator(".list tbody a").first.click()
        expect(page.locator(".detail h2")).to_be_visible()
        page.get_by_role("link", name="all errors").click()
        expect(page.locator(".list tbody a")).to_have_text(shown)
        page.reload()
        expect(page.locator(".list tbody a")).to_have_text(shown)
        expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Share")
        expect(page.locator("button[aria-pressed=true]").first).to_have_text("alive")
        expect(page.locator(".pager span")).to_contain_text("page 2 of")
        page.get_by_label("Run").select_option("other")
        expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Share")
        expect(page).to_have_url(f"{report.as_uri()}#atlas&run=1&which=alive&sort=share")
        page.locator("#tabs a", has_text="Atlas").click()
        expect(page.locator("th[aria-sort=descending]")).to_contain_text("Size")
        page.goto(f"{report.as_uri()}#atlas&run=0&which=x&verdict=constructor&sort=-__proto__&page=-7")
        expect(page.locator("th[aria-sort=descending]")).to_contain_text("Size")
        expect(page.locator(".pager span")).to_contain_text("page 1 of")
        page.goto(f"{report.as_uri()}#atlas&run=0&page=999")
        expect(page.get_by_role("button", name="next page")).to_be_disabled()


def test_answers_and_responses_are_searched(opened: Opened, tmp_path: Path) -> None:
    steps = [[replace(one, text=one.text and one.text.replace("step one", "Step one")) for one in step] for step in RUN]
    run = write_run(tmp_path / "run", steps)
    report = write_report([run.root], run.report)
    with opened(report, "#atlas") as page:
        page.get_by_label("Search").fill("21")
        expect(page.locator(".list tbody tr")).to_have_count(1)
        expect(page.locator(".chip mark")).to_have_text("21")
        page.get_by_label("Search").fill("Step ONE")
        expect(page.locator(".found")).to_have_text("response: Step one \\boxed{12}")
        expect(page.locator(".list tbody tr")).to_have_count(1)
        expect(page).to_have_url(f"{report.as_uri()}#atlas&run=0&q=Step%20ONE")
        page.reload()
        expect(page.locator(".found mark")).to_have_text("Step one")
        assert "null" not in page.locator("main").inner_text()


def test_a_prompt_shows_its_clusters_and_the_back_button_works(opened: Opened, tmp_path: Path) -> None:
    odd = replace(RUN[0][0], answer="13", text="odd \\boxed{13}")  # the most frequent answer is not the first
    run = write_run(tmp_path / "run", [[odd, *RUN[0][1:]], *RUN[1:]])
    with opened(write_report([run.root], run.report), "#atlas") as page:
        page.get_by_label("Search").focus()
        while not page.evaluate("document.activeElement.matches('.list tbody a')"):
            page.keyboard.press("Tab")  # everything can be reached with the keyboard
        page.keyboard.press("Enter")
        expect(page.locator(".asked")).to_have_text("What is a?")
        expect(page.locator(".facts")).to_contain_text("Right answer7")
        expect(page.locator(".facts")).to_contain_text("3 of 10 (30%)")
        expect(page.locator("a.cluster")).to_have_count(2)
        expect(page.locator("a.cluster").first).to_contain_text("4 67% of the wrong")
        expect(page.locator("a.cluster .fate")).to_have_text(["● alive", "○ died, 1 visit since"])
        expect(page.locator(".detail h2")).to_contain_text("Cluster 0")
        expect(page.locator(".examples .answer").first).to_have_text("13")
        expect(page.locator("a.cluster .chip").first).to_have_text("13 ×2")
        expect(page.locator("a.cluster .snippet").first).to_have_text("odd \\boxed{13}")
        expect(page.locator(".answers td:first-child")).to_have_text(["13", "12"])
        page.locator("a.cluster").nth(1).click()
        expect(page.locator(".detail h2")).to_contain_text("Cluster 1")
        expect(page.locator(".detail .examples .answer")).to_have_text(["20", "21"])
        page.locator(".wide svg.chart").focus()
        page.keyboard.press("Home")
        expect(page.locator(".wide .tip td:nth-child(2)")).to_have_text(
            ["right", "wrong, not remembered", "cluster 1", "cluster 0"]
        )
        expect(page.locator(".wide .tip td.num")).to_have_text(["1", "1", "2", "2"])
        expect(page.locator(".rightly .body")).to_have_text("right again 7")
        page.go_back()
        expect(page.locator(".detail h2")).to_contain_text("Cluster 0")
        page.go_back()
        expect(page.locator(".list")).to_be_visible()


def test_a_heatmap_parts_members_from_neighbors(opened: Opened, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with opened(write_report([run.root], run.report), "#prompt=a&cluster=1") as page:
        heatmap = page.locator("svg.heatmap")
        expect(heatmap.locator(".head")).to_have_text(["members", "nearest other rollouts"])
        assert heatmap.locator("> rect").count() == (2 + 4) * 4
        expect(heatmap.locator(".compared")).to_have_count(2)
        expect(heatmap.locator("> rect title").first).to_contain_text("layer 1: ")


def test_nothing_is_wider_than_the_window(opened: Opened, report: Path) -> None:
    views = {
        "errors": ".theme",
        "overview": ".card",
        "curves": "figure",
        "atlas": ".list",
        "prompt=math-00001": ".asked",
    }
    for width in (1920, 800, 390):
        with opened(report, width=width) as page:
            for view, part in views.items():
                page.goto(f"{report.as_uri()}#{view}")
                expect(page.locator(part).first).to_be_visible()
                assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_finished_run_has_ended_whatever_was_planned(opened: Opened, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    run.planned_steps.write_text("4\n")
    with opened(write_report([run.root], run.report), "#overview") as page:
        expect(page.locator(".card")).to_contain_text("3 of 4 planned")
        expect(page.locator("progress")).to_have_count(1)
        expect(page.locator(".card")).to_contain_text("3 clusters; 2 in none.")
    run.model.mkdir()
    run.model_complete.write_text("{}")
    with opened(write_report([run.root], run.report), "#overview") as page:
        ended = "ended after 3 steps (4 planned; dynamic sampling may leave steps out)"
        expect(page.locator(".card")).to_contain_text(ended)
        expect(page.locator("progress")).to_have_count(0)


def test_hostile_texts_are_shown_as_they_are(opened: Opened, tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    evil = [
        [replace(one, prompt=HOSTILE + one.prompt, text=f"see {HOSTILE}", answer=HOSTILE) for one in step]
        for step in RUN
    ]
    write_config(run, **{"data.prompt_dataset": HOSTILE})
    write_metrics(run, 3, **{HOSTILE: 1.0, "half \ud83d": 1.0})
    write_memory(run, evil)
    write_log(run, evil, HOSTILE + "{}")
    with opened(write_report([run.root], run.report), "#overview") as page:
        expect(page.locator(".card")).to_contain_text("</script><script>document.title='owned'</script><img src=x")
        page.locator("#tabs a", has_text="Curves").click()
        page.get_by_text("All other metrics").click()
        expect(page.locator(".others h4").first).to_contain_text("onerror=alert(1)")
        page.locator("#tabs a", has_text="Atlas").click()
        page.locator(".list tbody a").first.click()
        expect(page.locator(".asked")).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.locator(".response .answer").first).to_contain_text("<img src=x onerror=alert(1)>")
        page.reload()
        expect(page.locator(".detail h2")).to_contain_text("Cluster 0")
        assert page.locator("main img").count() == 0
        assert "owned" not in page.title().split("·")[-1]


def test_what_is_left_out_is_said(opened: Opened, report: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    limits = Limits(prompts=1, detailed_clusters=1)
    with opened(write_report([run.root], run.report, limits), "#atlas") as page:
        expect(page.locator("main")).to_contain_text("The list and the pages are of 1 of 2 prompts")
        expect(page.locator("main")).to_contain_text("Examples and heatmaps are of the 1 biggest of 3 clusters.")
        expect(page.locator("main")).to_contain_text("The log keeps the texts of 11 of 14 rollouts.")
        page.goto(f"{run.report.as_uri()}#prompt=a&cluster=1")
        expect(page.locator(".detail")).to_contain_text("1 biggest of 3 clusters; this is not one of them")
        page.goto(f"{run.report.as_uri()}#prompt=b")
        expect(page.locator("h1")).to_have_text("No such prompt")


def test_runs_with_less_have_less_on_the_page(opened: Opened, tmp_path: Path) -> None:
    plain = RunPaths(tmp_path / "plain")
    write_metrics(plain, 4)
    with opened(write_report([plain.root], plain.report)) as page:
        expect(page.locator(".card")).to_contain_text("the folder has no config.yaml")
        page.locator("#tabs a", has_text="Curves").click()
        expect(page.locator("figure")).to_have_count(1)
        page.locator("#tabs a", has_text="Atlas").click()
        expect(page.locator("main")).to_contain_text("so there is no atlas")
    only = RunPaths(tmp_path / "memory")
    write_memory(only, [[Rollout("a", 1)] * 4])
    with opened(write_report([only.root], only.report), "#prompt=a") as page:
        expect(page.locator("a.cluster").first).to_contain_text("50% of the wrong")
        expect(page.locator("a.cluster").first).to_contain_text("step 1◌ one visit so far")
        expect(page.locator(".detail")).to_contain_text("The run has no rollout log, so there are no responses.")
        page.locator("#tabs a", has_text="Overview").click()
        expect(page.locator("main")).to_contain_text("No step is finished yet")


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
    for width, least in ((1280, 10), (390, 9)):
        with opened(report, "#curves", width=width) as page:
            assert page.locator(".chart .axes text").evaluate_all(height) >= least
            page.goto(f"{report.as_uri()}#prompt=math-00001")
            expect(page.locator(".wide")).to_be_visible()
            assert page.locator(".chart .axes text").evaluate_all(height) >= least


def test_axes_have_units_and_diversity_begins_with_the_step(opened: Opened, report: Path) -> None:
    with opened(report, "#curves") as page:
        time = page.locator("figure", has=page.get_by_role("heading", name="Time of a step: one"))
        expect(time.locator(".axes text").last).to_have_text("step")
        assert (time.locator(".axes text").nth(1).text_content() or "").endswith(" s")
        ratio = page.locator("figure", has=page.get_by_role("heading", name="Top-1 eigen ratio"))
        pressed = ratio.locator(".legend button[aria-pressed=true]").all_inner_texts()
        assert pressed == ["wrong, step", "right, step"]
        expect(ratio.locator(".line")).to_have_count(4)
        expect(page.locator("main")).to_contain_text("Step: those of one step; window: those of the last steps")
        ratio.get_by_role("button", name="wrong, all").click()
        expect(ratio.locator(".line")).to_have_count(6)


def show(folder: Path, text: str, answer: str | None = None, question: str = "What is {}?") -> Path:
    """The report of a run whose cluster 0 of prompt a has two responses with ``text``."""
    one = Rollout("a", 1, answer, text=text)
    other = replace(one, text=f"Again: {text}")
    run = RunPaths(folder / "run")
    write_config(run)
    write_metrics(run, 1)
    write_memory(run, [[one, other]])
    write_log(run, [[one, other]], question)
    return write_report([run.root], run.report)


ELEMENTS = "all => [...new Set(all.map(one => one.localName))]"  # names of elements, each once


def test_mathematics_is_drawn_and_the_answer_in_it_is_marked(opened: Opened, tmp_path: Path) -> None:
    text = (
        r"So \(x^2 \le \sqrt[3]{y_1}\) and $$\sum_{i=1}^n \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$$ give "
        r"$\boxed{\frac{1}{2}}$. Unknown: $\strange{x}$. She has $5 and pays $3, or $4x$5."
    )
    report = show(tmp_path, text, r"\frac{1}{2}", question="Is $a_1 = {}$?")
    with opened(report, "#prompt=a&cluster=0") as page:
        body = page.locator(".detail .body").first
        expect(body.locator("math .boxed .answer mfrac")).to_have_count(1)
        expect(body.locator(".answer")).to_have_text("12")
        assert (
            body.locator("math .answer").evaluate("one => getComputedStyle(one).backgroundColor") != "rgba(0, 0, 0, 0)"
        )
        expect(body.locator("msup, mroot, msub")).to_have_count(3)
        expect(body.locator(".display munderover")).to_have_count(1)
        expect(body.locator("mtable mtr")).to_have_count(2)
        expect(body.locator("code")).to_have_text(r"$\strange{x}$")
        expect(body).to_contain_text("She has $5 and pays $3, or $4x$5.")
        expect(body.locator("math")).to_have_count(3)
        expect(page.locator(".asked math msub")).to_have_count(1)


def test_markdown_is_drawn(opened: Opened, tmp_path: Path) -> None:
    text = (
        "## Plan\nfirst line\nsecond line\n\n- **bold** and *thin*\n  1. deep 2*3*4\n  2. deeper `$x$`\n- last\n"
        "\n```python\nprint('*a*')\n\n# code\n```\n---\nend [x](http://a.b) | a | b |"
    )
    with opened(show(tmp_path, text), "#prompt=a&cluster=0") as page:
        body = page.locator(".detail .body").first
        expect(body.locator(".heading")).to_have_text("Plan")
        expect(body.locator("p").nth(1)).to_have_text("first line\nsecond line", use_inner_text=True)
        expect(body.locator("> ul > li")).to_have_count(2)
        expect(body.locator("li li")).to_have_text(["1. deep 2*3*4", "2. deeper $x$"])
        expect(body.locator("li strong")).to_have_text("bold")
        expect(body.locator("li em")).to_have_text("thin")
        assert body.locator("pre").text_content() == "print('*a*')\n\n# code"
        expect(body.locator("hr")).to_have_count(1)
        expect(body).to_contain_text("end [x](http://a.b) | a | b |")
        expect(body.locator("math, a")).to_have_count(0)


def test_turns_and_calls_of_tools_are_blocks(opened: Opened, tmp_path: Path) -> None:
    text = (
        f"<think>{'long ' * 200}</think>Calling.\n<tool_call>\n{{'add': [2, 2]}}\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n*4*\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is \\boxed{4}<|im_end|>"
    )
    with opened(show(tmp_path, text, "4"), "#prompt=a&cluster=0") as page:
        body = page.locator(".detail .body").first
        expect(body.locator("h4")).to_have_text(["tool call", "user", "tool reply", "assistant"])
        expect(body.locator("pre")).to_have_text(["{'add': [2, 2]}", "*4*"])
        expect(body.locator("summary")).to_have_text("scratch work")
        expect(body.locator("details[open]")).to_have_count(0)
        expect(body.locator(".turn .answer")).to_have_text("4")
        expect(body).to_contain_text("<|im_end|>")  # of a turn whose beginning is not in the text


def test_scratch_work_with_the_answer_is_open(opened: Opened, tmp_path: Path) -> None:
    text = f"{'long ' * 200} it is 4</think>done"
    llama = "<|start_header_id|>assistant<|end_header_id|>\n\nyes<|eot_id|>"
    with opened(show(tmp_path, text + llama, "4"), "#prompt=a&cluster=0") as page:
        body = page.locator(".detail .body").first
        expect(body.locator("details[open] .answer")).to_have_text("4")
        expect(body.locator("section h4")).to_have_text("assistant")
        expect(body.locator("section p")).to_have_text("yes")


def test_the_source_of_a_response_is_shown_as_it_was_written(opened: Opened, tmp_path: Path) -> None:
    text = "# One\n\n\n<think>  two</think> $\\frac{1}{2}$ **so**\t\\boxed{ 3 }\n"
    with opened(show(tmp_path, text, "3"), "#prompt=a&cluster=0") as page:
        response = page.locator(".detail .response").first
        expect(response.locator("math")).to_have_count(2)
        response.get_by_role("button", name="source").click()
        assert response.locator(".body").text_content() == text
        expect(response.locator(".body .answer")).to_have_text("3")
        response.get_by_role("button", name="source").click()
        expect(response.locator("math")).to_have_count(2)


def test_searched_words_are_marked_in_text_and_formulas(opened: Opened, tmp_path: Path) -> None:
    report = show(tmp_path, r"The Frac is **frac** $\frac{1}{2}$ and $x$")
    with opened(report, "#atlas&q=frac") as page:
        page.locator(".list tbody a").first.click()
        marks = page.locator(".detail .body").first.locator("mark")
        expect(marks).to_have_text(["Frac", "frac", "12"])
        expect(marks.locator("math")).to_have_count(1)


def test_hostile_markup_adds_nothing_but_text(opened: Opened, tmp_path: Path) -> None:
    pieces = [
        "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "![y](http://127.0.0.1:9/z.png)",
        "<iframe src=//a>",
        r"$\href{javascript:alert(1)}{x}$", r"$\text{<img src=x onerror=alert(1)>}$", r"$\style{color:red}{x}$",
        "```<script>alert(1)</script>\n<script>alert(2)</script>\n```", "<|im_start|>constructor\n<b>x</b><|im_end|>",
        "$" + "{" * 300 + "x" + "}" * 300 + "$", r"$\left( \frac{1$", r"\boxed{\sqrt[}",
        r"\begin{array}{<a>}x\end{array}",
        r"\begin{constructor}x\end{constructor}", r"$\__proto__ \constructor$", "**<svg onload=alert(1)>**",
    ]  # fmt: skip
    text = "\n\n".join(pieces)
    with opened(
        show(tmp_path, text, "javascript:alert(1)", "{} " + text.replace("{", "{{").replace("}", "}}"))
    ) as page:
        page.goto(f"{page.url}#prompt=a&cluster=0")
        body = page.locator(".detail .body").first
        expect(body.locator(".answer").first).to_have_text("javascript:alert(1)")
        for piece in (*pieces[:5], *pieces[6:7], *pieces[9:12], *pieces[13:15], "<svg onload=alert(1)>"):
            expect(body).to_contain_text(piece)
        names = set(page.locator("main .body *, main .asked *").evaluate_all(ELEMENTS))
        assert names <= {
            "p", "span", "strong", "code", "pre", "h4", "section", "math", "mrow", "mtext", "mtable", "mtr", "mtd",
            "mi", "mo", "mstyle",
        }  # fmt: skip
        attributes = "all => [...new Set(all.flatMap(one => one.getAttributeNames()))]"
        allowed = {"class", "display", "stretchy", "lspace", "rspace", "displaystyle", "mathvariant", "form"}
        assert set(page.locator("main .body *, main .asked *").evaluate_all(attributes)) <= allowed


ODD = ["{", "$", "*", r"\left(", "$x", "`", r"\(", "**a *b ", "\\boxed{", "- a\n", "<think>", "^"]


@pytest.mark.parametrize("characters", [15_000, 100_000])
def test_long_odd_texts_are_drawn(opened: Opened, tmp_path: Path, characters: int) -> None:
    run = RunPaths(tmp_path / "run")
    texts = [(odd * characters)[:characters] for odd in ODD]
    steps = [[Rollout("a", 1, None, text=shown) for text in texts for shown in (text, f"${text[:-2]}$")]]
    write_config(run, "answers")
    write_metrics(run, len(steps))
    write_memory(run, steps, "answers")  # all in one cluster
    write_log(run, steps)
    limits = Limits(examples=24, example_characters=characters + 9)
    with opened(write_report([run.root], run.report, limits), "#prompt=a&cluster=0") as page:
        expect(page.locator(".detail .response")).to_have_count(
            2 * len(ODD) - 1
        )  # dollar signs between dollar signs are the same
