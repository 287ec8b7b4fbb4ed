"""`meds whatif` on dumps and on a run's folder."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Meds
from tests.whatif.test_collapse import collapsing
from tests.whatif.written import write_dump

NAMES = ["penalty", "weights", "pass-at-k", "focal", "right-weight", "answer-ucb", "leave-out"]
REPEATED = [{name: letters.replace("xx", "xy") for name, letters in step.items()} for step in collapsing(40, 30, 16)]


def test_a_run_that_collapses_says_which_checkpoint_to_keep(meds: Meds) -> None:
    dump = write_dump(Path("dump.jsonl"), *REPEATED)
    page = meds.output("whatif", dump, "--json", "found.json")
    assert page.startswith(
        "4,800 rollouts of 40 prompts in 30 steps\n\npass@4 peaked at step 4 of 30 and fell by 50 points ("
    )
    assert " while pass@1 rose; keep the checkpoint of step 4.\n" in page
    assert "100% of wrong answers had been given to their prompt before; if " in page
    assert "pass@4  ████" in page
    assert "changes nothing here: " in page
    assert "\n(none)             0.00             0.00    1.00 " in page
    assert sorted(path.name for path in Path().iterdir()) == ["dump.jsonl", "found.json"]
    found = json.loads(Path("found.json").read_text())
    assert [method["name"] for method in found["methods"]] == NAMES
    for method in found["methods"]:
        assert method["changes_nothing"] == (method["amplitude"] < 0.05)
        assert -1 <= method["cosine"] <= 1
    collapse = found["collapse"]
    assert (collapse["collapses"], collapse["peak_step"], collapse["peak_k"]) == (True, 4, 4)
    assert collapse["recurrence"] == 1.0
    assert list(collapse["pass_at_k"]["30"]) == ["1", "2", "4"]
    assert list(collapse["pass_at_k"]) == [str(step) for step in range(1, 31)]


def test_the_prompts_that_a_method_changes_most_are_a_data_set(meds: Meds) -> None:
    dump = write_dump(Path("dump.jsonl"), *REPEATED, truth="1")
    meds.output("whatif", dump, "--json", "found.json", "--export", "focal", "set.jsonl")
    most = next(m["prompts"] for m in json.loads(Path("found.json").read_text())["methods"] if m["name"] == "focal")
    rows = [json.loads(line) for line in Path("set.jsonl").read_text().splitlines()]
    assert {row["id"] for row in rows} == set(most)
    assert len(rows) > 5
    assert {row["answer"] for row in rows} == {"1"}
    unknown = "--export=fokal: is not a method of the table. Did you mean focal?"
    assert meds.refusal("whatif", dump, "--export", "fokal", "set.jsonl") == unknown


def test_the_folder_of_a_run_and_its_dump_give_the_same(meds: Meds, capsys: pytest.CaptureFixture[str]) -> None:
    dump = write_dump(Path("dump.jsonl"), *REPEATED[:4])
    meds.output("atlas", dump, "--out", "run")
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    assert meds.output("whatif", "run") == meds.output("whatif", dump)
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before  # nothing is changed
    _, printed, page = meds("whatif", "run", "--json", "-")
    assert json.loads(printed)["group"] == 4
    assert page.startswith("640 rollouts")


def test_without_second_visits_what_needs_time_is_null_and_the_page_says_why(meds: Meds) -> None:
    dump = write_dump(Path("dump.jsonl"), {"a": "rxyx", "b": "rrxx", "c": "rrrr"})
    page = meds.output("whatif", dump, "--json", "found.json")
    assert "\nNo prompt is visited twice, so nothing can be said of what comes back or of a peak.\n" in page
    assert "\n33% of groups give no advantages.\n" in page
    assert "changes nothing here, as no prompt comes back: the paper's penalty" in page
    found = json.loads(Path("found.json").read_text())
    timed = ("recurrence", "recurrence_null", "peak_step", "fall", "collapses")
    assert {name: found["collapse"][name] for name in timed} == dict.fromkeys(timed)
    assert found["baseline"] == {"without_advantages": 1 / 3, "seen_before": None, "solved": None}


def test_where_all_groups_are_solved_nothing_is_said_of_a_fall(meds: Meds) -> None:
    dump = write_dump(Path("dump.jsonl"), *[{"a": "rxyz", "b": "rrxy"}] * 20)
    page = meds.output("whatif", dump, "--json", "found.json")
    assert "\nEvery logged group has a right response, so pass@4 cannot fall in this log. If " in page
    found = json.loads(Path("found.json").read_text())
    assert [found["collapse"][name] for name in ("peak_k", "peak_step", "fall", "collapses")] == [None] * 4
    for method in found["methods"]:
        assert method["mixed"] == method["amplitude"]


def test_what_could_not_be_read_is_told(meds: Meds) -> None:
    dump = write_dump(Path("dump.jsonl"), {"a": "r---", "b": "----"}, {"a": "----"})
    dump.write_text(f'{{"step": 1, "prompt": "p", "response": "x", "reward": NaN}}\n{dump.read_text()}')
    code, page, trouble = meds("whatif", dump)
    assert code == 1
    assert "\nNo final answer was found in a wrong response, so nothing can be said of what comes back.\n" in page
    assert trouble.startswith("skipped 1 line ")
    assert "meds: 1 of 12 rollouts have a final answer. Name the answers' pattern with --answer-pattern" in trouble


def test_what_is_refused(meds: Meds) -> None:
    dump = write_dump(Path("dump.jsonl"), {"a": "rx"})
    meds.output("atlas", dump, "--out", "run")
    assert meds.refusal("whatif", "run", dump).startswith("ROLLOUTS=dump.jsonl: comes after a run. Name one run, or")
    assert meds.refusal("whatif", "nowhere").startswith("FILES=nowhere: does not exist")
    assert meds.refusal("whatif", dump, "--json", "run").startswith("--json=run: is a folder")
    assert meds.refusal("whatif", dump, "--format=x").startswith("--format=x: must be one of auto, ")
    assert meds.refusal("whatif", dump, "--answer-pattern=x").startswith("--answer-pattern=x: must be a text")
    assert meds.refusal("whatif", "run", "--answer-pattern=(x)").startswith(
        "--answer-pattern=(x): is for dumps, and run is a run. Leave it out."
    )
    assert meds.refusal("whatif", "run", "--json=x", "--export", "focal", "x").startswith("--json=x: is named for two")
    assert meds.refusal("whatif", "run", "--export", "focal", "run").startswith("--export=run: is a folder")
