"""A run's files, read line by line while they grow and are cut."""

import math
from pathlib import Path

import pytest

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.run_lines import RunLine, RunLines
from tests.tracking.written_run import WrittenRun


def read(lines: RunLines) -> list[tuple[str, int]]:
    return [(line.stream, line.step) for line in lines.read_new()]


def test_new_lines_of_all_streams_come_once_and_by_step(run: WrittenRun) -> None:
    lines = RunLines(run.paths)
    run.step(1, loss=0.5)
    run.step(2, loss=0.25)
    run.evaluation(1, pass1=0.75)
    assert lines.read_new() == [
        RunLine("metrics", 1, {"loss": 0.5}),
        RunLine("evaluations", 1, {"pass1": 0.75}),
        RunLine("metrics", 2, {"loss": 0.25}),
    ]
    assert lines.read_new() == []
    run.step(3, loss=0.125)
    assert read(lines) == [("metrics", 3)]


def test_half_a_line_is_read_when_it_is_whole(run: WrittenRun) -> None:
    lines = RunLines(run.paths)
    with run.paths.metrics.open("a") as file:
        file.write('{"step": 1}\n{"step": 2, "lo')
        file.flush()
        assert read(lines) == [("metrics", 1)]
        file.write('ss": 4.0}\n')
        file.flush()
        assert lines.read_new() == [RunLine("metrics", 2, {"loss": 4.0})]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_file_that_was_cut_is_noticed(run: WrittenRun, is_removed: bool) -> None:
    for step in (1, 2, 3):
        run.step(step, loss=1.0)
    lines = RunLines(run.paths)
    lines.read_new()
    if is_removed:
        run.paths.metrics.unlink()
    else:
        run.logs["metrics"].cut_after(3)  # a resumed run replaces the file also where nothing is to be cut
    with pytest.raises(RuntimeError, match="the run was resumed"):
        lines.read_new()
    assert read(RunLines(run.paths)) == ([] if is_removed else [("metrics", 1), ("metrics", 2), ("metrics", 3)])


def test_files_that_are_not_there_have_no_lines(tmp_path: Path) -> None:
    assert RunLines(RunPaths(tmp_path)).read_new() == []


def test_only_numbers_are_taken() -> None:
    line = RunLine("metrics", 1, {"a": 1, "b": 2.5, "c": "text", "d": None, "e": [1], "f": float("nan"), "g": True})
    taken = line.numbers
    assert {name: value for name, value in taken.items() if name != "train/f"} == {
        "train/a": 1,
        "train/b": 2.5,
        "train/g": True,
    }
    assert math.isnan(taken["train/f"])
