"""Which rows become problems, and that none of the others goes uncounted."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meds_openrlhf.data.catalog import CATALOG, DataSet
from meds_openrlhf.data.questions import normalised
from meds_openrlhf.data.selection import Selection
from meds_openrlhf.data.sources import Row
from meds_openrlhf.data.templates import qwen_math_prompt

DAPO, MATH = CATALOG["dapo-math-17k"], CATALOG["math"]

QUESTIONS = ["a?", "A ?", "b?", "$c$?", "c?", "d<|im_end|>", "put your answer on its own line", None]
FIELDS = {"question": QUESTIONS, "answer": ["1", "2", None], "level": ["", "2", "3"]}
ROWS = st.lists(st.builds(Row, **{name: st.sampled_from(values) for name, values in FIELDS.items()}), max_size=12)


def selected(dataset: DataSet, rows: list[Row], held_out: set[str] | None = None) -> tuple[list[str], Counter[str]]:
    selection = Selection(held_out or set())
    selection.add(dataset, rows)
    return [problem.question for problem in selection.finish()], selection.counts[dataset.name].dropped


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(None, "1", "3"), "no question"),
        (Row("q", None, "3"), "no answer"),
        (Row("q. Put your answer on its own line.", "1", "3"), "answer format"),
        (Row("q<|im_end|>", "1", "3"), "chat marker"),
        (Row("q", "1", "2"), "level"),
    ],
)
def test_rows_that_make_no_problem(row: Row, reason: str) -> None:
    assert selected(MATH, [row, Row("kept", "1", "3")]) == (["kept"], Counter({reason: 1}))


def test_of_equal_questions_the_first_stays_unless_their_answers_differ_or_a_benchmark_asks_it() -> None:
    rows = [Row("What is $1 + 1$?", "2", ""), Row("what is 1+1?", "$ 2$", ""), Row("What is $1 + 1$?", "2", "")]
    assert selected(DAPO, rows) == (["What is $1 + 1$?"], Counter({"duplicate": 2}))
    rows = [Row("a", "1", ""), Row("b", "1", ""), Row("A", "2", ""), Row("a", "1", "")]
    assert selected(DAPO, rows) == (["b"], Counter({"duplicate": 2, "conflicting answers": 1}))
    rows = [Row("$a$", "1", ""), Row("b", "1", ""), Row("$a$", "2", "")]
    assert selected(DAPO, rows, {normalised("a")}) == (["b"], Counter({"duplicate": 1, "in a benchmark": 1}))


def test_across_sets_the_first_named_wins_and_each_counts_its_own_rows() -> None:
    selection = Selection()
    selection.add(DAPO, [Row("a", "1", ""), Row("b", "2", "")])
    selection.add(MATH, [Row("A", "1", "3"), Row("c", "3", "5"), Row("b", "two", "4")])
    problems = selection.finish()
    found = [(problem.question, problem.datasource, problem.level) for problem in problems]
    assert found == [("a", "dapo-math-17k", ""), ("c", "math", "5")]
    assert selection.counts["dapo-math-17k"].dropped == Counter({"conflicting answers": 1})
    assert selection.counts["math"].dropped == Counter({"duplicate": 2})
    assert [counts.kept for counts in selection.counts.values()] == [1, 1]
    assert problems[0].prompt == qwen_math_prompt("a")
    assert problems[0].id == "dapo-math-17k-ca978112ca1b"  # of sha256("a")


@given(ROWS, ROWS, st.sets(st.sampled_from(["a?", "c?"])))
def test_every_row_is_accounted_for(first: list[Row], second: list[Row], held_out: set[str]) -> None:
    selection = Selection(held_out)
    selection.add(DAPO, first)
    selection.add(MATH, second)
    problems = selection.finish()
    for name, rows in (("dapo-math-17k", first), ("math", second)):
        counts = selection.counts[name]
        assert counts.read == len(rows) == counts.kept + sum(counts.dropped.values())
        assert counts.kept == sum(problem.datasource == name for problem in problems)
    questions = [normalised(problem.question) for problem in problems]
    assert len({problem.id for problem in problems}) == len(set(questions)) == len(problems)
    assert not held_out.intersection(questions)
