"""Gradings that may be wrong, prompts that are never solved, and groups by step."""

from dataclasses import replace
from pathlib import Path

import pytest

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report import suspects
from meds_openrlhf.report.atlas import Atlas, read_atlas
from meds_openrlhf.report.suspects import Gradings, groups_by_step
from tests.report.stored_runs import Rollout, write_config, write_log


def atlas_of(root: Path, rollouts: list[Rollout], truth: str | None, steps: int = 1) -> Atlas:
    paths = RunPaths(root)
    write_config(paths)
    write_log(paths, [rollouts] * steps, truth=truth)
    atlas = read_atlas(paths)
    assert atlas is not None
    return atlas


def gradings_of(*atlases: Atlas) -> Gradings:
    questions = {key: text for atlas in atlases for key, text in atlas.texts.items()}
    return Gradings([atlas.rollouts for atlas in atlases], questions)


def answered(answer: str | None, times: int = 1, prompt: str = "a", correct: bool = False) -> list[Rollout]:
    return [Rollout(prompt, None, answer, correct, text=f"so \\boxed{{{answer}}}")] * times


@pytest.mark.parametrize(
    ("answer", "truth", "why"),
    [
        ("0.5", r"\frac{1}{2}", "it equals the label"),
        ("10000", "10{,}000", "it equals the label"),
        (r"4:30 \text{ p.m.}", r"\text{4:30 p.m.}", "it equals the label after normalization"),
        pytest.param(
            *(r"\sqrt{8}", r"2\sqrt{2}", "math-verify calls it equal to the label"),
            marks=pytest.mark.needs("math_verify"),
        ),
        ("12", "13", None),
        ("x+1", "x-1", None),
        ("7", None, None),
    ],
)
def test_an_answer_that_equals_its_label_is_suspect(
    tmp_path: Path, answer: str, truth: str | None, why: str | None
) -> None:
    found = gradings_of(atlas_of(tmp_path, [*answered(answer, 2), *answered("99", 2)], truth)).suspects
    assert [(one.answer, one.truth, one.count, one.why) for one in found] == ([(answer, truth, 2, why)] if why else [])


def test_without_math_verify_normalization_still_finds_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "find_spec", lambda name: None)
    gradings = gradings_of(atlas_of(tmp_path, [*answered("0.5"), *answered(r"\sqrt{0.25}")], "1/2"))
    assert not gradings.has_math_verify
    assert [one.answer for one in gradings.suspects] == ["0.5"]


@pytest.mark.needs("math_verify")
def test_only_the_most_frequent_answers_are_verified_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "VERIFIED", 1)
    gradings = gradings_of(atlas_of(tmp_path, [*answered(r"\sqrt{4}"), *answered(r"\sqrt[3]{8}", 3)], "2"))
    assert [one.answer for one in gradings.suspects] == [r"\sqrt[3]{8}"]
    assert gradings.left_out == 1


@pytest.mark.needs("math_verify")
def test_the_time_of_math_verify_begins_with_its_first_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradings = gradings_of(atlas_of(tmp_path, answered(r"\sqrt{4}"), "2"))
    later = suspects.time.monotonic() + 2 * suspects.SECONDS
    monkeypatch.setattr(suspects.time, "monotonic", lambda: later)
    assert [suspect.answer for suspect in gradings.suspects] == [r"\sqrt{4}"]
    assert gradings.left_out == 0


def test_answers_that_nearly_all_rollouts_share_are_suspect(tmp_path: Path) -> None:
    atlas = atlas_of(tmp_path / "a", [*answered("8", 4), *answered("7", correct=True), *answered("3", 3, "b")], "7")
    (found,) = gradings_of(atlas).suspects
    assert (found.key, found.answer, found.count, found.why) == ("a", "8", 4, "4 of 5 rollouts agree on it")
    rarer = atlas_of(tmp_path / "b", [*answered("8", 3), *answered("7", 2, correct=True)], "7")
    assert gradings_of(rarer).suspects == []


def test_labels_that_no_answer_matches_are_suspect(tmp_path: Path) -> None:
    label = "He has 3 + 4 = 7.\n#### 7"
    (found,) = gradings_of(atlas_of(tmp_path / "a", answered("7", 3), label)).suspects
    assert (found.answer, found.truth, found.count, found.why) == (None, label, 3, "the label is a worked solution")
    solved = atlas_of(tmp_path / "b", [*answered("7", 3), *answered("7.0", correct=True)], label)
    (found,) = gradings_of(solved).suspects
    assert (found.answer, found.count, found.why) == ("7", 3, "it was also scored right, 1 time")


def test_prompts_that_are_never_solved_come_with_their_most_frequent_answer(tmp_path: Path) -> None:
    rollouts = [*answered("1", 2), *answered("1.0"), *answered(None), *answered("2", 2, "b"), *answered("3", 1, "b")]
    atlas = atlas_of(tmp_path, [*rollouts, *answered("7", 1, "c", correct=True), *answered("6", 1, "c")], "7", steps=2)
    found = gradings_of(atlas).unsolved
    assert [(one.key, one.rollouts, one.answers, one.answer, one.count, one.truth) for one in found] == [
        ("a", 8, 1, "1", 6, "7"), ("b", 6, 2, "2", 4, "7"),
    ]  # fmt: skip
    assert found[0].prompt == "What is a?"


def test_runs_are_counted_together(tmp_path: Path) -> None:
    runs = [atlas_of(tmp_path / name, answered("0.5", 2), "1/2") for name in ("a", "b")]
    (found,) = gradings_of(*runs).suspects
    assert found.count == 4


def test_labels_of_one_run_are_those_of_all(tmp_path: Path) -> None:
    runs = [atlas_of(tmp_path / name, answered("0.5"), truth) for name, truth in (("a", None), ("b", "1/2"))]
    assert [one.truth for one in gradings_of(*runs).suspects] == ["1/2"]
    assert gradings_of(*runs).suspects == gradings_of(*runs[::-1]).suspects


def test_groups_of_a_step_are_all_right_all_wrong_or_mixed(tmp_path: Path) -> None:
    right, wrong = answered("7", 2, correct=True), answered("8", 2)
    rollouts = [
        *right,
        *[replace(one, prompt="b") for one in wrong],
        *answered("7", 1, "c", True),
        *answered("8", 1, "c"),
    ]
    groups = groups_by_step(atlas_of(tmp_path, rollouts, "7", steps=2).rollouts)
    assert groups == {"steps": [1, 2], "right": [1, 1], "wrong": [1, 1], "mixed": [1, 1]}
