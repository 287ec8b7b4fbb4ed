"""Cutting responses to size with the answer in sight."""

from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.report.examples import ANSWER, LEFT_OUT, parts_of
from meds_openrlhf.report.rollout_rows import Response


def test_the_answer_is_marked_where_it_stands() -> None:
    assert parts_of(Response("it is 7, so 7.", "7", 6), 100) == [(0, "it is "), (1, "7"), (0, ", so 7.")]
    assert parts_of(Response("it is 7, so 7.", "7", 3), 100) == [(0, "it is 7, so "), (1, "7"), (0, ".")]
    assert parts_of(Response("no number", "7", None), 100) == [(0, "no number")]
    assert parts_of(Response("nothing", None, None), 100) == [(0, "nothing")]


def test_of_a_long_response_the_beginning_and_what_is_around_the_answer_stay() -> None:
    text = "b" * 500 + "7" + "e" * 500
    parts = parts_of(Response(text, "7", 500), 100)
    assert [(kind, len(part) if isinstance(part, str) else part) for kind, part in parts] == [
        (0, 30), (2, 418), (0, 52), (1, 1), (0, 17), (2, 483),
    ]  # fmt: skip


@given(st.text(max_size=60), st.text(max_size=5), st.none() | st.integers(-2, 70), st.integers(1, 50))
def test_nothing_is_lost_uncounted(text: str, answer: str, start: int | None, characters: int) -> None:
    parts = parts_of(Response(text, answer, start), characters)
    assert sum(part if kind == LEFT_OUT else len(part) for kind, part in parts) == len(text)
    assert sum(len(part) for kind, part in parts if kind != LEFT_OUT) <= max(characters, 1) + 1
    assert all(part == answer for kind, part in parts if kind == ANSWER and len(text) <= characters)
    kept = "".join(part for kind, part in parts if kind != LEFT_OUT)
    assert len(text) > characters or kept == text
