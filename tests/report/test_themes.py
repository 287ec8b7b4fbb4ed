"""The themes of small runs, as data for the first page."""

from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.atlas import read_atlas
from meds_openrlhf.report.themes import themes_of
from tests.report.stored_runs import RUN, Rollout, write_log, write_memory, write_metrics, write_run


def kinds_of(a: int, b: int) -> list[Rollout]:
    """Rollouts of a prompt with two kinds of errors, a sum for a product (mode 1) and an answer of 0 (mode 2)."""
    prompt, total = f"{a}*{b}", str(a + b)
    return [
        Rollout(prompt, 1, total, text=f"{a}+{b}={total}, \\boxed{{{total}}}"),
        Rollout(prompt, 1, total, text=f"so {a}+{b} = {total} \\boxed{{{total}}}"),
        *[Rollout(prompt, 2, "0", text="hence \\boxed{0}")] * 2,
        Rollout(prompt, None, str(a * b), correct=True, text=f"{a}*{b}={a * b} \\boxed{{{a * b}}}"),
    ]


KINDS = [*kinds_of(2, 3), *kinds_of(4, 7)[:4]]
LATER = [replace(one, text=None) for one in KINDS if one.mode != 2]


def themes(paths: RunPaths) -> dict:
    atlas = read_atlas(paths)
    assert atlas is not None
    found = themes_of([atlas])
    assert found is not None
    return {"names": found["names"], **found["runs"][0]}


def test_two_kinds_of_errors_over_two_prompts(tmp_path: Path) -> None:
    found = themes(write_run(tmp_path / "run", [KINDS, LATER]))
    assert found["names"] == ["given + given = wrong", "hence \\boxed { wrong }"]
    sums = 0
    assert found["rows"][sums] == [4, 4]
    assert found["prompts"][sums] == 2
    assert sum(map(sum, found["rows"])) == sum(found["wrong"]) == 12
    assert found["wrong"] == [8, 4]
    assert found["all"] == [9, 5]
    assert found["ends"] == [1, 2]
    assert len(found["of"]) == 4
    assert found["of"].count(sums) == 2


def test_penalized_rollouts_are_counted_by_theme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_run(tmp_path / "run", [KINDS])
    monkeypatch.setattr("tests.report.stored_runs.PENALTY", 0.25)
    write_log(paths, [KINDS])
    found = themes(paths)
    assert found["penalized"] == [sum(rows) for rows in found["rows"]]


def test_rows_beyond_the_log_and_a_log_without_texts(tmp_path: Path) -> None:
    assert sum(themes(write_run(tmp_path / "run"))["wrong"]) == sum(
        one.mode is not None for step in RUN for one in step
    )
    silent = RunPaths(tmp_path / "silent")
    write_memory(silent, [KINDS])
    write_metrics(silent, 1)
    atlas = read_atlas(silent)
    assert atlas is not None
    assert themes_of([atlas]) is None


def test_a_run_is_compared_with_the_first_one_prompt_by_prompt(tmp_path: Path) -> None:
    kinds = [one for number in range(2, 10) for one in kinds_of(number, 7)]
    better = [replace(one, mode=None, correct=True) if one.mode == 1 else one for one in kinds]
    runs = [read_atlas(write_run(tmp_path / name, [steps])) for name, steps in (("a", kinds), ("b", better))]
    found = themes_of([run for run in runs if run is not None])
    assert found is not None
    difference, low, high = found["runs"][1]["change"][found["names"].index("given + given = wrong")]
    assert difference == -0.4
    assert low < difference < high < 0
    same, low, high = found["runs"][1]["change"][1 - found["names"].index("given + given = wrong")]
    assert (same, low < 0 < high) == (0, True)
    assert found["runs"][0]["change"][0][0] == 0  # a single step is its own start and end
    assert found["runs"][1]["rows"][found["names"].index("given + given = wrong")] == [0]
