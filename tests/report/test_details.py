"""Cutting responses to size with the answer in sight."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.details import ANSWER, LEFT_OUT, candidates, choose, parts_of
from meds_openrlhf.rollouts.run import NONE, RolloutLog
from meds_openrlhf.rollouts.texts import ResponseText


def test_the_answer_is_marked_where_it_stands() -> None:
    assert parts_of(ResponseText("it is 7, so 7.", "7", 6), 100) == [(0, "it is "), (1, "7"), (0, ", so 7.")]
    assert parts_of(ResponseText("nothing", None, None), 100) == [(0, "nothing")]


def test_of_a_long_response_the_beginning_and_what_is_around_the_answer_stay() -> None:
    text = "b" * 500 + "7" + "e" * 500
    parts = parts_of(ResponseText(text, "7", 500), 100)
    assert [(kind, len(part) if isinstance(part, str) else part) for kind, part in parts] == [
        (0, 30), (2, 418), (0, 52), (1, 1), (0, 17), (2, 483),
    ]  # fmt: skip


def rollouts_with(answers: list[int], has_text: list[bool]) -> RolloutLog:
    every = np.arange(len(answers))
    wrong = np.zeros(len(answers), bool)
    columns = every, every, every, np.array(answers), wrong, wrong, wrong, np.array(has_text)
    return RolloutLog(RunPaths(Path()), *columns, [], [], {}, {})


def test_the_first_example_has_the_most_frequent_answer() -> None:
    everywhere = np.arange(6)
    assert candidates(everywhere, rollouts_with([5, 7, 8, 8, 7, 8], [True] * 6), 2)[0] == 2
    assert candidates(everywhere, rollouts_with([5, 7, 8, 8, 7, 8], [True] * 4 + [False] * 2), 2)[0] == 2
    assert candidates(everywhere, rollouts_with([5, 7, 8, 8, 7, 8], [True] * 2 + [False] * 2 + [True] * 2), 2)[0] == 5
    assert candidates(everywhere, rollouts_with([5, 7, 8, 8, 7, 8], [True, True, *[False] * 4]), 2)[0] == 1
    assert candidates(everywhere, rollouts_with([NONE, 7, NONE, 8, 8, NONE], [True] * 6), 2)[0] == 3
    assert candidates(everywhere, rollouts_with([5] * 6, [False] * 6), 2) == []


def test_the_others_are_in_the_order_of_their_steps_and_no_text_comes_twice() -> None:
    responses = {place: ResponseText(text, None, None) for place, text in enumerate(["a", "b", "a", "c", "d"])}
    assert choose([3, 2, 9, 1, 0, 4], responses, 3) == [3, 1, 2]


@given(st.text(max_size=40), st.text(min_size=1, max_size=5), st.text(max_size=40), st.integers(1, 50))
def test_nothing_is_lost_uncounted(before: str, answer: str, behind: str, characters: int) -> None:
    text = before + answer + behind
    parts = parts_of(ResponseText(text, answer, len(before)), characters)
    assert sum(part if kind == LEFT_OUT else len(part) for kind, part in parts) == len(text)
    assert sum(len(part) for kind, part in parts if kind != LEFT_OUT) <= max(characters, 1) + 1
    assert all(part == answer for kind, part in parts if kind == ANSWER and len(text) <= characters)
    kept = "".join(part for kind, part in parts if kind != LEFT_OUT)
    assert len(text) > characters or kept == text
