"""The themes of small runs, as data for the first page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.atlas import read_atlas
from meds_openrlhf.report.themes import CUT_OFF, REST, UNANSWERED, themes_of
from tests.report.stored_runs import Rollout, write_run


def kinds_of(a: int, b: int) -> list[Rollout]:
    """Rollouts of a prompt with two kinds of errors, a sum for a product (mode 1) and an answer of 0 (mode 2)."""
    prompt, total = f"{a}*{b}", str(a + b)
    return [
        Rollout(prompt, 1, total, text=f"{a}+{b}={total}, \\boxed{{{total}}}"),
        Rollout(prompt, 1, total, text=f"so {a}+{b} = {total} \\boxed{{{total}}}"),
        *[Rollout(prompt, 2, "0", text="guess \\boxed{0}")] * 2,
        Rollout(prompt, None, str(a * b), correct=True, text=f"{a}*{b}={a * b} \\boxed{{{a * b}}}"),
    ]


SUMS = "adds instead of multiplying: given + given = wrong"
KINDS = [*kinds_of(2, 3), *kinds_of(4, 7)[:4]]
LATER = [replace(one, text=None) for one in KINDS if one.mode != 2]


def themes(paths: RunPaths) -> dict:
    atlas = read_atlas(paths)
    assert atlas is not None
    found = themes_of([atlas])
    assert found is not None
    shown = found.for_page()
    return {"names": shown["names"], **shown["runs"][0]}


def test_two_kinds_of_errors_over_two_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.report.stored_runs.PENALTY", 0.25)
    found = themes(write_run(tmp_path / "run", [KINDS, LATER]))
    assert found["names"] == [SUMS, "“guess”"]
    assert found["rows"] == [[4, 4], [4, 0]]
    assert found["prompts"] == [2, 2]
    assert found["penalized"] == [8, 4]
    assert (found["wrong"], found["all"], found["ends"]) == ([8, 4], [9, 5], [1, 2])
    assert sorted(found["of"]) == [0, 0, 1, 1]


def test_the_themes_of_a_real_model_are_of_wrong_sums_and_wrong_operations() -> None:
    found = themes(RunPaths(Path(__file__).parents[2] / "examples" / "real_model"))
    assert found["names"][:2] == ["miscalculates a difference", "miscalculates a sum: given + given = wrong"]
    assert not [name for name in found["names"] if name.startswith("calculates")]  # each is told by what was done


def test_texts_of_a_step_that_its_run_has_just_removed_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [KINDS, KINDS])
    atlas = read_atlas(run)
    assert atlas is not None
    run.rollouts(1).unlink()
    found = themes_of([atlas])
    assert found is not None
    assert {example["s"] for of_theme in found.runs[0].examples for example in of_theme} == {2}


@pytest.mark.needs("openai")
def test_a_language_model_names_the_themes_and_its_cost_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.judge.judge_server import Request, Response, judge_server

    def answers(request: Request, _number: int) -> Response:
        if "<wrong_response>" in request.material:
            return Response("MISTAKE: adds")
        if "<kinds>" not in request.material:
            return Response("KIND: a sum for a product")
        return Response("\n".join(f"{line}: 1" for line in range(1, request.material.count("adds") + 1)))

    run, findings = write_run(tmp_path / "run", [KINDS]).root, tmp_path / "findings.json"
    with judge_server(answers) as judge:
        options = ["--judge-model", "m", "--judge-url", judge.url, "--cache", str(tmp_path / "cache")]
        assert main(["report", str(run), "--json", str(findings), *options]) == 0
    assert [theme["name"] for theme in json.loads(findings.read_text())["themes"]] == ["a sum for a product"]
    assert "Judge m: " in capsys.readouterr().err


def test_without_texts_clusters_are_of_one_theme(tmp_path: Path) -> None:
    atlas = read_atlas(write_run(tmp_path / "run", [[replace(one, text=None) for one in KINDS]]))
    assert atlas is not None
    found = themes_of([atlas])
    assert found is not None
    assert (found.names, len(found.runs[0].at(0))) == ([REST], 8)


def test_a_run_is_compared_with_the_first_one_prompt_by_prompt(tmp_path: Path) -> None:
    kinds = [one for number in range(2, 10) for one in kinds_of(number, 7)]
    better = [replace(one, mode=None, correct=True, text=None) if one.mode == 1 else one for one in kinds]
    elsewhere = [Rollout("of the second run alone", 2, "0", text="guess \\boxed{0}")] * 2
    runs = [write_run(tmp_path / name, [steps]) for name, steps in (("a", kinds), ("b", [*better, *elsewhere]))]
    found = themes_of([atlas for run in runs if (atlas := read_atlas(run)) is not None])
    assert found is not None
    sums = found.names.index(SUMS)
    first, second = found.for_page()["runs"]
    assert second["rows"][sums] == [0]
    difference, low, high = second["change"][sums]
    assert difference == -0.4
    assert low < difference < high < 0
    same, low, high = second["change"][1 - sums]
    assert (same, low < 0 < high) == (0, True)
    assert first["change"] == []  # a single step has no start and end


def test_equal_wrong_rollouts_of_two_runs_have_no_change(tmp_path: Path) -> None:
    """Each run's own right responses used to define what is right and wrong, and equal errors seemed to change."""
    kinds = [one for number in range(2, 10) for one in kinds_of(number, 7)]
    worded = [replace(one, text=f"Indeed {one.text}, and 11 + 0 = 11") if one.correct else one for one in kinds]
    runs = [write_run(tmp_path / name, [steps, steps]) for name, steps in (("a", kinds), ("b", worded))]
    atlases = [atlas for run in runs if (atlas := read_atlas(run)) is not None]
    found, other_way = themes_of(atlases), themes_of(atlases[::-1])
    assert found is not None
    assert other_way is not None
    first, second = found.runs
    assert second.rollouts["theme"].tolist() == first.rollouts["theme"].tolist()
    assert [change[0] for change in second.change] == [0.0] * len(found.names)
    assert all(low < 0 < high for _, low, high in second.change)
    assert (found.names, found.runs[0].of.tolist()) == (other_way.names, other_way.runs[1].of.tolist())


def test_rollouts_without_an_answer_are_themes_by_count(tmp_path: Path) -> None:
    silent = [Rollout("2*3", None, None, text="I wonder")] * 5
    cut = [replace(one, truncated=True) for one in silent[:2]]
    textless = [Rollout("9*9", 1, "18", text=None)] * 2  # of a cluster, but no text says of which kind
    run = write_run(tmp_path / "run", [[*KINDS, *silent, *cut, *textless]])
    atlas = read_atlas(run)
    assert atlas is not None
    found = themes_of([atlas])
    assert found is not None
    assert found.names == [UNANSWERED, SUMS, "“guess”", REST, CUT_OFF]
    assert [len(found.runs[0].at(number)) for number in range(5)] == [5, 4, 4, 2, 2]
    assert [example["label"] for example in found.runs[0].examples[0]] == [None]
    assert found.runs[0].examples[0][0]["p"] == [(0, "I wonder")]
    wrong = found.runs[0].rollouts.query("wrong")
    assert (wrong["theme"] >= 0).all()
