"""The findings of a report for programs: JSON and Markdown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main
from tests.report.stored_runs import Rollout, write_metrics, write_run
from tests.report.test_themes import KINDS, LATER, SUMS

SILENT = Rollout("2*3", None, None, text="I wonder ``` # no [link](http://x)")


def test_findings_have_each_wrong_rollout_in_one_theme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [[*KINDS, SILENT], LATER], truth="6")
    write_metrics(run, 2)
    assert main(["report", str(run.root), "--json", "-", "--out", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"{tmp_path / 'page.html'}\n"
    found = json.loads(printed.out)
    name = str(run.root)
    assert sorted(found) == [
        "graded_with", "metrics", "rollouts", "runs", "suspects", "themes", "unanswered", "unsolved", "version",
        "whatif",
    ]  # fmt: skip
    assert (found["version"], found["runs"], found["graded_with"]) == (1, [name], "math-verify")
    assert (found["rollouts"], found["unanswered"]) == ({name: 15}, {name: 1})
    assert found["whatif"][name]["rollouts"] == 15
    assert found["metrics"][name]["steps"] == [1, 2]
    assert found["metrics"][name]["values"] == {"meds/reward_raw": [0.1, 0.2]}
    themes = {theme["name"]: theme for theme in found["themes"]}
    assert list(themes) == [SUMS, "“guess”", "no final answer"]
    places = [(one["run"], one["step"], one["sample"]) for theme in found["themes"] for one in theme["rollouts"]]
    wrong = [(1, i) for i, one in enumerate([*KINDS, SILENT]) if not one.correct]
    wrong += [(2, i) for i, one in enumerate(LATER) if not one.correct]
    assert sorted(places) == [(name, *place) for place in wrong]
    assert [(one["step"], round(one["share"], 3)) for one in themes[SUMS]["share"]] == [(1, 0.4), (2, 0.8)]
    change = themes["“guess”"]["change"]
    assert change["points"] < 0
    assert change["is_clear"] == (change["high"] < 0)
    assert change["low"] <= change["points"] <= change["high"]


def test_of_several_runs_the_change_is_from_the_first_to_the_last(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, [steps])
        for name, steps in (("a", KINDS), ("b", KINDS), ("c", [one for one in KINDS if one.mode != 2]))
    ]
    out = tmp_path / "found.json"
    assert main(["report", *(str(run.root) for run in runs), "--json", str(out)]) == 0
    themes = {theme["name"]: theme for theme in json.loads(out.read_text())["themes"]}
    assert themes["“guess”"]["change"]["points"] == -45.0
    assert {one["run"] for one in themes[SUMS]["rollouts"]} == {str(run.root) for run in runs}


def test_a_single_step_has_no_change_and_a_run_without_a_log_no_themes(tmp_path: Path) -> None:
    run, bare, out = write_run(tmp_path / "run", [KINDS]), tmp_path / "bare", tmp_path / "found.json"
    assert main(["report", str(run.root), "--json", str(out)]) == 0
    assert {theme["change"] for theme in json.loads(out.read_text())["themes"]} == {None}
    other = write_run(bare, [KINDS])
    for step in other.rollout_steps():
        other.rollouts(step).unlink()
    assert main(["report", str(bare), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["themes"], found["suspects"], found["unanswered"]) == ([], [], {})


def test_a_run_in_which_nobody_answers_has_its_prompts_that_are_never_solved(tmp_path: Path) -> None:
    silent = [replace(SILENT, prompt=prompt) for prompt in ("a", "a", "b")]
    runs = [write_run(tmp_path / name, [steps]) for name, steps in (("a", silent), ("b", KINDS))]
    out = tmp_path / "found.json"
    assert main(["report", *(str(run.root) for run in runs), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    unsolved = [(one["key"], one["rollouts"], one["answer"]) for one in found["unsolved"]]
    assert unsolved == [("4*7", 4, "11"), ("a", 2, None), ("b", 1, None)]
    assert list(found["unanswered"].values()) == [3, 0]


def test_two_outputs_need_two_files_and_odd_texts_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [KINDS])
    write_metrics(run, 1, **{"odd \ud800": 1.0})
    assert main(["report", str(run.root), "--json", "-", "--markdown", "-"]) == 2
    assert "--json=-: is named for two outputs" in capsys.readouterr().err
    assert main(["report", str(run.root), "--json", str(tmp_path / "x"), "--markdown", str(tmp_path / "y")]) == 0
    assert "odd \ud800" in json.loads((tmp_path / "x").read_text())["metrics"][str(run.root)]["values"]


def test_findings_as_markdown_keep_hostile_texts_as_code(tmp_path: Path) -> None:
    hostile = [replace(one, text=f"``` </script> # {one.text}") for one in KINDS]
    run = write_run(tmp_path / "run", [[*hostile, SILENT], LATER], truth="``` 6")
    out = tmp_path / "found.md"
    assert main(["report", str(run.root), "--markdown", str(out)]) == 0
    text = out.read_text()
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        f"# What `{run.root}` got wrong", "## Suspect grading", "## Never solved: 1 prompt", "## Kinds of errors",
        "### adds instead of multiplying: given + given = wrong", "### “script \\> guess”", "### no final answer",
        "## Without an answer",
    ]  # fmt: skip
    assert "\n````\n``` </script> # 2+3=5, \\boxed{5}\n````\n" in text
    assert f"- `{run.root}`: 1 of 15 rollouts" in text


def test_a_file_of_findings_that_cannot_be_written_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [KINDS])
    for option in ("--json", "--markdown"):
        assert main(["report", str(run.root), option, str(tmp_path)]) == 2
        assert f"{option}={tmp_path}: is a folder" in capsys.readouterr().err
    assert not run.report.exists()
