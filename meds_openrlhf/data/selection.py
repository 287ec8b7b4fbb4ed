"""Select the rows that become the problems of a file: distinct questions with a single answer, none in a benchmark.

Every row is counted: it is kept, or dropped for a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from meds_openrlhf.data.catalog import DataSet
from meds_openrlhf.data.questions import asks_for_answer_format, normalised, problem_id
from meds_openrlhf.data.sources import Row
from meds_openrlhf.data.templates import qwen_math_prompt

NO_QUESTION = "no question"
NO_ANSWER = "no answer"
ANSWER_FORMAT = "answer format"  # the question asks for another answer format than the template
CHAT_MARKER = "chat marker"  # the question would end the user's turn
LEVEL = "level"
DUPLICATE = "duplicate"
IN_BENCHMARK = "in a benchmark"
CONFLICTING = "conflicting answers"


@dataclass(frozen=True)
class Problem:
    """A line of a prepared file. All fields are strings in every set, so that files load together."""

    id: str
    prompt: str  # with the template
    question: str
    answer: str
    datasource: str
    level: str  # empty if the set has none


@dataclass
class Counts:
    """Row counts of a set: ``read`` is the sum of ``kept`` and all of ``dropped``."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_text(self) -> str:
        """The reasons and their numbers of rows, the most frequent first: ``duplicate 6, in a benchmark 1``."""
        return ", ".join(f"{reason} {rows:,}" for reason, rows in self.dropped.most_common())


class Selection:
    """Collects the rows of several sets; of equal questions, the first is kept.

    ``held_out`` are normalised questions to leave out. Questions with conflicting answers are left out too, because the
    data does not say which answer is right.
    """

    def __init__(self, held_out: Collection[str] = ()) -> None:
        self.counts: dict[str, Counts] = {}
        self._held_out = held_out
        self._first: dict[str, Problem] = {}  # by normalised question
        self._conflicting: set[str] = set()

    @property
    def questions(self) -> Collection[str]:
        """Every normalised question that could have been kept, those with conflicting answers included."""
        return self._first.keys()

    def add(self, dataset: DataSet, rows: Iterable[Row]) -> None:
        """Add a set's rows. Its counts are final after `finish`; ``kept`` is 0 until then."""
        counts = self.counts.setdefault(dataset.name, Counts())
        judged: dict[Row, tuple[str, Problem] | str] = {}  # DAPO repeats its rows: judge each once
        for row in rows:
            counts.read += 1
            verdict = judged.get(row)
            if verdict is None:
                verdict = judged[row] = _judge(dataset, row)
            if isinstance(verdict, str):
                counts.dropped[verdict] += 1
                continue
            question, problem = verdict
            first = self._first.get(question)
            if first is None:
                self._first[question] = problem
                continue
            counts.dropped[DUPLICATE] += 1
            if first.answer != problem.answer and normalised(first.answer) != normalised(problem.answer):
                self._conflicting.add(question)

    def finish(self) -> list[Problem]:
        """The problems to keep, in the order in which they were added; counts the others as dropped."""
        kept = []
        for question, problem in self._first.items():
            counts = self.counts[problem.datasource]
            if question in self._held_out:
                counts.dropped[IN_BENCHMARK] += 1
            elif question in self._conflicting:
                counts.dropped[CONFLICTING] += 1
            else:
                counts.kept += 1
                kept.append(problem)
        return kept


def _judge(dataset: DataSet, row: Row) -> tuple[str, Problem] | str:
    """The row's normalised question and its problem, or the reason to drop it."""
    question = normalised(row.question or "")
    if row.question is None or not question:
        return NO_QUESTION
    if row.answer is None:
        return NO_ANSWER
    if asks_for_answer_format(row.question):
        return ANSWER_FORMAT
    if dataset.levels and row.level not in dataset.levels:
        return LEVEL
    try:
        prompt = qwen_math_prompt(row.question)
    except ValueError:  # not empty, so it has a chat marker
        return CHAT_MARKER
    name = dataset.name
    return question, Problem(problem_id(name, question), prompt, row.question, row.answer, name, row.level)
