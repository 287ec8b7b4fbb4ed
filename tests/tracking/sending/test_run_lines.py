"""A run's files, read line by line while they grow and are cut."""

import math
from pathlib import Path

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.sending.run_lines import RunLine, RunLines, numbers
from tests.tracking.sending.written_run import WrittenRun


def steps(lines: list[RunLine]) -> list[int]:
    return [line.step for line in lines]


def test_new_lines_are_read_as_they_come(run: WrittenRun) -> None:
    lines = RunLines(run.paths)
    run.step(1, loss=0.5)
    run.step(2, loss=0.25)
    assert lines.read("metrics", 0) == [RunLine(1, {"loss": 0.5}), RunLine(2, {"loss": 0.25})]
    assert lines.read("metrics", 2) == []
    run.step(3, loss=0.125)
    assert steps(lines.read("metrics", 2)) == [3]
    assert steps(lines.read("metrics", 0, limit=2)) == [1, 2]
    assert steps(lines.read("metrics", 1, limit=1)) == [2]


def test_half_a_line_is_read_when_it_is_whole(run: WrittenRun) -> None:
    lines = RunLines(run.paths)
    with run.paths.metrics.open("a") as file:
        file.write('{"step": 1}\n{"step": 2, "lo')
        file.flush()
        assert steps(lines.read("metrics", 0)) == [1]
        file.write('ss": 4.0}\n')
        file.flush()
        assert lines.read("metrics", 1) == [RunLine(2, {"loss": 4.0})]


def test_a_file_that_takes_the_place_of_another_is_read_anew(run: WrittenRun) -> None:
    lines = RunLines(run.paths)
    for step in (1, 2, 3):
        run.step(step, loss=1.0)
    assert steps(lines.read("metrics", 0)) == [1, 2, 3]
    for repeated in (10.0, 20.0):
        run.logs["metrics"].cut_after(1)
        run.step(2, loss=repeated)
        assert lines.read("metrics", 1) == [RunLine(2, {"loss": repeated})]


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert RunLines(RunPaths(tmp_path)).read("evaluations", 0) == []


def test_lines_are_counted_up_to_a_step(run: WrittenRun) -> None:
    for step in (2, 4, 4, 6):
        run.evaluation(step, pass1=0.5)
    counts = [RunLines(run.paths).count_up_to("evaluations", step) for step in (1, 2, 4, 5, 9)]
    assert counts == [0, 1, 3, 3, 4]


def test_only_numbers_are_taken() -> None:
    line = RunLine(1, {"a": 1, "b": 2.5, "c": "text", "d": None, "e": [1], "f": float("nan"), "g": True})
    taken = numbers(line)
    assert {name: value for name, value in taken.items() if name != "f"} == {"a": 1, "b": 2.5, "g": True}
    assert math.isnan(taken["f"])
