"""Runs before a judge that counts: it scores the later answers by how many of them were not there before."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from analysis.judged import Sizes
from analysis.new_paths import draw_returns, main, returns_to_prompts
from tests.analysis.runs import write_log
from tests.judge.judge_server import Judge, Request, Response, judge_server, options

PROMPTS = tuple(f"p{number:02d}" for number in range(30))


def _count_new(request: Request, _: int) -> Response:
    texts = {
        name: set(re.findall(rf"<{name} answer \d+>\n(.*?)\n</{name}", request.material, re.DOTALL))
        for name in ("earlier", "later")
    }
    return Response(f"SCORE: {min(len(texts['later'] - texts['earlier']), 2) + 1}")


def _run(root: Path, new: int, prompts: tuple[str, ...] = PROMPTS) -> str:
    """Two epochs of two steps; in the second one ``new`` of three responses to each prompt are new."""
    half = len(prompts) // 2
    steps = {1: prompts[:half], 2: prompts[half:], 3: prompts[:half], 4: prompts[half:]}
    responses = {step: [f"r{i + (new if step > 2 else 0)}" for i in range(3)] for step in steps}
    return str(write_log(root, {step: {p: responses[step] for p in own} for step, own in steps.items()}))


def test_every_run_is_scored_on_the_same_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [_run(tmp_path / f"new{new}", new) for new in (0, 1, 3)]
    with judge_server(_count_new) as judge:
        assert main([*runs, *options(tmp_path, judge)]) == 0
        assert main([*runs, *options(tmp_path, judge)]) == 0
        assert len(judge.requests) == 60
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:5]]
    assert rows == [
        ["new0", "20", "0", "20", "0", "0", "1.00", "0.00"],
        ["new1", "20", "0", "0", "20", "0", "2.00", "0.00"],
        ["new3", "20", "0", "0", "0", "20", "3.00", "0.00"],
    ]
    numbers = json.loads((tmp_path / "n.json").read_text())
    places = {
        run: [(one["prompt"], one["earlier_step"], one["later_step"]) for one in numbers["pairs"] if one["run"] == run]
        for run in ("new0", "new1", "new3")
    }
    assert places["new0"] == places["new1"] == places["new3"]
    assert len(set(places["new0"])) == 20
    assert [steps for _, *steps in sorted(places["new0"])] == 10 * [[1, 3]] + 10 * [[2, 4]]
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_malformed_and_missing_ones_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(request: Request, before: int) -> Response:
        return Response("SCORE: 4") if "Question p00?" in request.material else _count_new(request, before)

    run = _run(tmp_path / "run", 1, PROMPTS[:4])
    with judge_server(script) as judge:
        assert main([run, *options(tmp_path, judge)]) == 0
    printed = capsys.readouterr()
    row = printed.out.splitlines()[2].split("|")
    assert [cell.strip() for cell in row[1:-1]] == ["run", "3", "1", "0", "3", "0", "2.00", "0.00"]
    assert "4 of 210 prompts, in 2 pairs of steps: no more came back in all runs." in printed.err


def test_a_run_of_one_epoch_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = str(write_log(tmp_path / "once", {1: {"p": ["a"]}, 2: {"q": ["b"]}}))
    assert main([once, *options(tmp_path, Judge("http://127.0.0.1:1/v1", _count_new))]) == 2
    assert "share no prompt that returned in a later epoch" in capsys.readouterr().err


def test_an_interrupted_script_ends_in_one_line_and_goes_on_from_its_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(request: Request, before: int) -> Response:
        if before == 12:  # five are answered, eight are under way
            os.kill(os.getpid(), signal.SIGINT)
        return Response("SCORE: 1", seconds=0 if before < 5 else 60)

    run = _run(tmp_path / "run", 1)
    with judge_server(script) as judge:
        assert main([run, *options(tmp_path, judge)]) == 130
    assert capsys.readouterr().err.splitlines()[1:] == ["interrupted"]  # after the note on how few there are
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 5
    with judge_server(_count_new) as judge:
        assert main([run, *options(tmp_path, judge)]) == 0
    assert len(judge.requests) == 15
    assert judge.requests[0].material.count("</earlier answer") == 3


def _sizes(visits: dict[str, list[int]]) -> Sizes:
    steps = sorted({step for own in visits.values() for step in own})
    return {step: {prompt: 2 for prompt, own in visits.items() if step in own} for step in steps}


def test_a_prompt_left_out_of_an_epoch_does_not_count_as_back() -> None:
    sizes = _sizes({"p": [1, 11, 21], "q": [2, 13], "r": [3, 23]})
    assert returns_to_prompts(sizes) == {("p", 0): (1, 11), ("p", 1): (11, 21), ("q", 0): (2, 13)}
    assert returns_to_prompts(_sizes({"p": [1]})) == {}


def test_returns_are_those_of_all_runs_and_the_same_for_the_same_seed() -> None:
    places = [{("p", 0): (1, 2), ("q", 0): (1, 2)}, {("q", 0): (4, 5), ("r", 0): (1, 2)}]
    assert draw_returns(places, 21, 10, 0) == [[("q", 0)]]
    many = {(f"p{i}", 0): (i % 50, 100) for i in range(1000)}
    drawn = draw_returns([many], 21, 10, 0)
    assert [len(keys) for keys in drawn] == 21 * [10]
    assert all(len({many[key] for key in keys}) == 1 for keys in drawn)
    assert drawn == draw_returns([dict(reversed(many.items()))], 21, 10, 0)
    assert drawn != draw_returns([many], 21, 10, 1)


def test_pairs_of_steps_with_enough_prompts_come_first() -> None:
    place = {**{(f"p{i}", 0): (1, 3) for i in range(5)}, ("q", 0): (2, 4), **{(f"r{i}", 0): (5, 7) for i in range(3)}}
    for seed in range(5):
        drawn = draw_returns([place], 2, 3, seed)
        assert sorted(key[0][0] for keys in drawn for key in keys) == ["p"] * 3 + ["r"] * 3
