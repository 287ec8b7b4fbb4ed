"""Prepare data sets: read, select, and write them as JSON Lines for training and evaluation.

All training sets of a call go into the same file, ``train.jsonl``; every benchmark gets its own file. Selected are
distinct questions with a single answer, of training sets none that is in a benchmark. Every row is counted: it is kept,
or dropped for a reason. Beside each file, NAME.counts.json has the counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.catalog import TRAINING_FILE, DataSet
from meds_openrlhf.data.questions import asks_for_answer_format, normalized, problem_id, qwen_math_prompt
from meds_openrlhf.data.sources import Row, Source, read_rows
from meds_openrlhf.files import write_atomically
from meds_openrlhf.rewards.grading import MOST_UNMATCHED, unmatched

NO_QUESTION = "no question"
NO_ANSWER = "no answer"
ANSWER_FORMAT = "answer format"  # the question asks for another answer format than the template
HAS_CHAT_MARKER = "chat marker"  # the question would end the user's turn
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

    ``held_out`` are normalized questions to leave out. Questions with conflicting answers are left out too, because the
    data does not say which answer is right.
    """

    def __init__(self, held_out: Collection[str] = ()) -> None:
        self.counts: dict[str, Counts] = {}
        self._held_out = held_out
        self._first: dict[str, Problem] = {}  # by normalized question
        self._conflicting: set[str] = set()

    @property
    def questions(self) -> Collection[str]:
        """Every normalized question that could have been kept, those with conflicting answers included."""
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
            if first.answer != problem.answer and normalized(first.answer) != normalized(problem.answer):
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
    """The row's normalized question and its problem, or the reason to drop it."""
    question = normalized(row.question or "")
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
        return HAS_CHAT_MARKER
    name = dataset.name
    return question, Problem(problem_id(name, question), prompt, row.question, row.answer, name, row.level)


Report = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """An output file: its name without suffix, its problems, and the counts of each set in it."""

    name: str
    problems: list[Problem]
    counts: dict[str, Counts]

    def path(self, folder: Path) -> Path:
        """The path of the problems."""
        return folder / f"{self.name}.jsonl"


def prepare(sources: Sequence[Source], out: Path, report: Report = lambda line: None) -> list[Prepared]:
    """Write the files of these sets into ``out``: training first, then the benchmarks in their order.

    Training questions that are in one of the benchmarks are left out. All sets are read before anything is written: if
    a set fails, ``out`` is unchanged. ``report`` gets a line per set. Raises ConfigError if a set cannot be read or
    leaves no problems, or if ``out`` cannot be written.
    """
    check_writable(out)
    training = [source for source in sources if source.dataset.kind == "training"]
    tested = {source.dataset.name: [source] for source in sources if source.dataset.kind == "benchmark"}
    files, held_out = [], set[str]()
    for name, together in {**tested, **({TRAINING_FILE: training} if training else {})}.items():
        selection = Selection(held_out if name == TRAINING_FILE else ())
        for source in together:
            report(f"reading {source.dataset.name} from {source}")
            selection.add(source.dataset, read_rows(source))
        files.append(_finish(name, selection, together))
        _check_labels(files[-1], together, report)
        held_out.update(selection.questions)
    files.sort(key=lambda file: file.name != TRAINING_FILE)
    if not training and (out / f"{TRAINING_FILE}.jsonl").exists():
        report(f"note: {out}/train.jsonl was not compared with {', '.join(tested)}. Prepare both in one call.")
    write(files, out, {source.dataset.name: str(source) for source in sources})
    return files


def _finish(name: str, selection: Selection, sources: Collection[Source]) -> Prepared:
    problems = selection.finish()
    for source in sources:
        counts = selection.counts[source.dataset.name]
        # Duplicates are valid problems, only from an earlier set.
        if not counts.kept and not (problems and counts.dropped[DUPLICATE]):
            hint = f"none of its {counts.read:,} rows can be used: {counts.as_text()}. docs/data.md explains them"
            raise source.error(f"{hint}; --columns question=COLUMN answer=COLUMN names other columns.")
    return Prepared(name, problems, selection.counts)


def _check_labels(file: Prepared, sources: Collection[Source], report: Report) -> None:
    """Report the labels of each set that only a copy of them can match.

    Raises ConfigError if a training set has more than `MOST_UNMATCHED` of them.
    """
    try:
        places = unmatched([problem.answer for problem in file.problems])
    except ModuleNotFoundError as error:
        report(f"note: without {error.name}, labels are not checked")
        return
    for source in sources:
        name = source.dataset.name
        wrong = [problem for place in places if (problem := file.problems[place]).datasource == name]
        if not wrong:
            continue
        kept = file.counts[name].kept
        fault = f"{len(wrong):,} of {kept:,} answers cannot be compared, e.g. {wrong[0].answer!r:.80} of {wrong[0].id}"
        if len(wrong) > MOST_UNMATCHED * kept and source.dataset.kind == "training":
            raise source.error(f"{fault}. Correct them, or name another column: --columns answer=COLUMN")
        report(f"note: {name}: {fault}; only a copy of them is right")


def write(files: Sequence[Prepared], out: Path, origins: dict[str, str]) -> None:
    """Write files and their counts; ``origins`` says where each set is from."""
    try:
        for file in files:
            lines = [json.dumps(asdict(problem)) + "\n" for problem in file.problems]
            write_atomically(file.path(out), "".join(lines))
            sets = {name: {"source": origins[name], **vars(counts)} for name, counts in file.counts.items()}
            summary = {"file": f"{file.name}.jsonl", "problems": len(file.problems), "sets": sets}
            write_atomically(out / f"{file.name}.counts.json", json.dumps(summary, indent=2) + "\n")
    except OSError as error:
        raise ConfigError("--out", str(out), f"is not writable ({error.strerror}). Name another folder.") from error


def check_writable(out: Path) -> None:
    """Raise ConfigError, before anything is read, if the folder cannot be created or written to."""
    folder = next(each for each in (out, *out.parents) if each.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ConfigError("--out", str(out), f"is not writable, because {folder} is not. Name another folder.")
