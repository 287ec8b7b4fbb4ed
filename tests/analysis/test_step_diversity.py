"""Two runs before a judge that counts: it scores a set by the number of different texts in it."""

import json
import re
from pathlib import Path

import pytest

from analysis.step_diversity import PAPER_STEPS, draw_pairings, main, spans_of, steps_to_judge
from meds_openrlhf.config.errors import ConfigError
from tests.analysis.runs import write_log
from tests.judge.judge_server import Judge, Request, Response, judge_server, options

PROMPTS = tuple("pqrstu")


def _count_different(request: Request, _: int) -> Response:
    sets = {
        letter: re.findall(rf"<set {letter}, answer \d+>\n(.*?)\n</set", request.material, re.DOTALL) for letter in "AB"
    }
    return Response("\n".join(f"SCORE {letter}: {len(set(texts))}" for letter, texts in sets.items()))


def _runs(tmp_path: Path, steps: tuple[int, ...] = (30, 40)) -> list[str]:
    """A run of four different responses to each question, and one of two; at step 40 of three."""
    varied = {step: {p: [f"{p}{i}" for i in range(4)] for p in PROMPTS} for step in steps}
    narrow = {step: {p: [f"{p}{i % (2 + (step == 40))}" for i in range(4)] for p in PROMPTS} for step in steps}
    return [str(write_log(tmp_path / name, log)) for name, log in (("varied", varied), ("narrow", narrow))]


def test_each_run_gets_its_own_score_whichever_was_shown_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with judge_server(_count_different) as judge:
        assert main([*_runs(tmp_path), *options(tmp_path, judge, "--groups", "6")]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].split("|")[4:6] == [" varied ", " narrow "]
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in output[2:5]] == [
        ["30", "6", "0", "4.00", "2.00", "+2.00"],
        ["40", "6", "0", "4.00", "3.00", "+1.00"],
        ["all", "12", "0", "4.00", "2.50", "+1.50"],
    ]
    numbers = json.loads((tmp_path / "n.json").read_text())
    assert {one["run_shown_first"] for one in numbers["comparisons"]} == {0, 1}
    assert numbers["all"]["errors"][1] == pytest.approx(0.5222329678670935 / 12**0.5)


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with judge_server(_count_different) as judge:
        assert main([*_runs(tmp_path, steps=(20, 30)), *options(tmp_path, judge)]) == 0
        assert main([*_runs(tmp_path), *options(tmp_path, judge, "--steps", "40", "--groups", "6")]) == 0
    errors = capsys.readouterr().err
    assert "1 of 80 steps: only these have all texts in both runs." in errors
    assert "6 of 10 questions: no others were answered at least twice by both runs within 0 steps" in errors
    assert errors.count("\n") == 2  # and nothing where nothing is missing


@pytest.mark.parametrize(
    ("malformed", "row", "means"),
    [("Question p?", r"\| 30 +\| +5 \| +1 \| +4.00 \| +2.00 \|", [4.0, 2.0]), ("", r"\| 30 +\| +0 \| +6 \| +\|", None)],
)
def test_malformed_replies_are_left_out_of_the_means_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], malformed: str, row: str, means: list[float] | None
) -> None:
    def script(request: Request, before: int) -> Response:
        return Response("4 and 2") if malformed in request.material else _count_different(request, before)

    with judge_server(script) as judge:
        assert main([*_runs(tmp_path, steps=(30,)), *options(tmp_path, judge)]) == 0
    assert re.search(row, capsys.readouterr().out)
    assert json.loads((tmp_path / "n.json").read_text())["all"]["means"] == means


def test_as_many_answers_of_each_run_and_no_more_than_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(write_log(tmp_path / text, {30: {"p": [50 * text] * count}})) for text, count in (("x", 5), ("y", 3))]
    for more, shown in (([], 3), (["--answers", "2", "--response-characters", "20"], 2)):
        with judge_server(_count_different) as judge:
            assert main([*runs, *options(tmp_path, judge, *more)]) == 0
        assert judge.requests[0].material.count("</set A,") == judge.requests[0].material.count("</set B,") == shown
    assert judge.requests[0].material.count("[... 30 characters left out ...]") == 4
    assert "4 responses were shown without their middle" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        (({1: {"p": ["a", "b"]}}, {1: {"p": ["a", "b"]}}), "share the texts of 1 steps, 1 to 1. Name others"),
        (({1: {"p": ["a", "b"]}}, {30: {"p": ["a", "b"]}}), "share the texts of no step"),
        (({30: {"p": ["a", "b"]}}, {30: {"q": ["a", "b"]}}), "--nearby=0: finds no question that both runs"),
        (({30: {"p": ["a", "b"]}}, {30: {"p": ["a"]}}), "--nearby=0: finds no question that both runs"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_before_the_judge_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], logs: tuple, message: str
) -> None:
    runs = [str(write_log(tmp_path / name, log)) for name, log in zip("ab", logs)]
    assert main([*runs, *options(tmp_path, Judge("http://127.0.0.1:1/v1", _count_different))]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "n.json").exists()


def test_the_papers_steps_are_the_default() -> None:
    whole = {step: {"p": 2} for step in range(1, 121)}
    assert len(PAPER_STEPS) == 80
    assert steps_to_judge([whole, whole], None) == [*range(21, 101)]
    assert steps_to_judge([whole, {40: {}, 7: {}}], None) == [40]
    assert steps_to_judge([whole, whole], [7, 3, 7]) == [3, 7]
    with pytest.raises(ConfigError, match=r"--steps=500: are not in both runs"):
        steps_to_judge([whole, whole], [500])


def test_the_table_has_ten_rows_at_most() -> None:
    assert spans_of([3, 5, 9]) == [(3, 3), (5, 5), (9, 9)]
    assert spans_of(range(21, 101)) == [(first, first + 7) for first in range(21, 101, 8)]
    assert spans_of(range(1, 12))[-1] == (11, 11)


def test_a_question_may_have_come_some_steps_away() -> None:
    sizes = [{20: {"p": 2, "q": 2}, 21: {"r": 2}}, {18: {"p": 2}, 20: {"q": 2}, 22: {"p": 2, "r": 2}}]
    pairings = draw_pairings(sizes, [20], count=10, nearby=2, seed=0)
    assert {pairing.prompt: pairing.steps for pairing in pairings} == {"p": (20, 18), "q": (20, 20), "r": (21, 22)}
    assert [pairing.prompt for pairing in draw_pairings(sizes, [20], 10, 0, 0)] == ["q"]


def test_what_is_drawn_at_a_step_does_not_depend_on_others() -> None:
    sizes = {step: {f"p{i}": 2 for i in range(50)} for step in (20, 40)}
    both = draw_pairings([sizes, sizes], [20, 40], 10, 0, 0)
    assert len(both) == 20
    assert draw_pairings([sizes, sizes], [40], 10, 0, 0) == both[10:]
    assert draw_pairings([sizes, sizes], [40], 10, 0, 1) != both[10:]
