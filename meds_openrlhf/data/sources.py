"""Reading sets: records from the hub, a folder, a Parquet or JSON file, each as a row of three texts.

Records are read in batches and passed on one by one, so that a set that repeats itself a hundred times is never held.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.answers import answer_text
from meds_openrlhf.data.catalog import DataSet
from meds_openrlhf.data.questions import unwrapped
from meds_openrlhf.rewards.boxed import last_boxed

BATCH_ROWS = 8192

# What sets call these columns; the first that is there counts. A dot leads into a column of records.
# A prompt comes last because it may have a template around the question, a solution because the answer is inside it.
QUESTION_COLUMNS = ("question", "problem", "prompt")
ANSWER_COLUMNS = ("answer", "final_answer", "reward_model.ground_truth", "ground_truth", "solution")
LEVEL_COLUMN = "level"
# Its answer is what it boxes last.
WORKED_ANSWER = "solution"

Record = dict[str, Any]


class Row(NamedTuple):
    """One record: question and answer as texts, None where there is none, and the level, empty where there is none."""

    question: str | None
    answer: str | None
    level: str


@dataclass(frozen=True)
class Source:
    """A set and where it is read from: ``path``, or the hub where that is None."""

    dataset: DataSet
    path: Path | None = None

    def __str__(self) -> str:
        return str(self.path or self.dataset.hub)

    def error(self, mend: str) -> ConfigError:
        """What to raise for this source."""
        if self.path is None:
            return ConfigError(self.dataset.name, self.dataset.hub, mend)
        return ConfigError("--from", f"{self.dataset.name}={self.path}", mend)


@dataclass(frozen=True)
class Columns:
    """The columns that make a row."""

    question: str
    answer: str
    level: str | None

    @property
    def heads(self) -> list[str]:
        """The columns of the file that they lie in."""
        return [column.split(".")[0] for column in (self.question, self.answer, self.level) if column]


@dataclass(frozen=True)
class _Opened:
    names: list[str]
    read: Callable[[list[str]], Iterable[Record]]
    """The records, with the columns asked for and perhaps others."""


def read_rows(source: Source) -> Iterator[Row]:
    """All rows of a set, in its own order.

    Raises ConfigError where it cannot be reached or read, or has no columns for question, answer and, if the set is
    filtered by it, level.
    """
    try:
        opened = _open(source)
        columns = pick_columns(source, opened.names)
        for number, record in enumerate(opened.read(columns.heads), 1):
            try:
                row = _row(record, columns)
            except (TypeError, UnicodeEncodeError) as error:
                raise source.error(f"cannot be read: record {number}: {error}") from error
            yield row
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # Arrow's and JSON's errors are ValueErrors
        raise source.error(f"cannot be read: {_first_line(error)}") from error


def pick_columns(source: Source, names: list[str]) -> Columns:
    """The columns to read among those that are there."""
    question = _first_present(QUESTION_COLUMNS, names)
    answer = _first_present(ANSWER_COLUMNS, names)
    level = _first_present((LEVEL_COLUMN,), names)
    found = f"it has {', '.join(names) or 'none'}"
    if question is None:
        raise source.error(f"has no column for the question ({', '.join(QUESTION_COLUMNS)}); {found}")
    if answer is None:
        raise source.error(f"has no column for the answer ({', '.join(ANSWER_COLUMNS)}); {found}")
    if source.dataset.levels and level is None:
        raise source.error(f"has no column {LEVEL_COLUMN}, by which {source.dataset.name} is filtered; {found}")
    return Columns(question, answer, level)


def _first_present(wanted: Iterable[str], names: list[str]) -> str | None:
    return next((column for column in wanted if column.split(".")[0] in names), None)


# ── a record ──


def _row(record: Record, columns: Columns) -> Row:
    answer = _value(record, columns.answer)
    if columns.answer == WORKED_ANSWER and isinstance(answer, str):
        answer = last_boxed(answer)
    level = answer_text(_value(record, columns.level)) if columns.level else None
    question = _question_text(_value(record, columns.question))
    row = Row(question, answer_text(answer), (level or "").removeprefix("Level").strip())
    "".join(text for text in row if text).encode()  # JSON can hold half a character, which no file can
    return row


def _value(record: Record, column: str) -> Any:
    value: Any = record
    for name in column.split("."):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(f"{column} is {value!r:.80}, no record with {name}")
        value = value.get(name)
    return value


def _question_text(value: Any) -> str | None:
    """A text, or the one user's message of a chat, out of its wrapping."""
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        said = [message.get("content") for message in value if message.get("role") == "user"]
        if len(said) != 1:
            raise TypeError(f"the question is a chat with {len(said)} messages of the user, give one")
        value = said[0]
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"the question is {value!r:.80}, give a text or a chat of one message")
    return unwrapped(value).strip() or None


# ── where records come from ──


def _open(source: Source) -> _Opened:
    path = source.path
    if path is None or path.is_dir():
        return _open_hub(source)
    if not path.exists():
        raise source.error("is not there; give a Parquet or JSON file, or a folder copied from the hub")
    if path.suffix == ".parquet":
        return _open_parquet(path)
    if path.suffix in (".jsonl", ".json"):
        return _open_json(source, path)
    raise source.error("is of no known kind; its name must end with .parquet, .jsonl or .json")


def _open_parquet(path: Path) -> _Opened:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)

    def read(columns: list[str]) -> Iterator[Record]:
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()

    return _Opened(file.schema_arrow.names, read)


def _open_json(source: Source, path: Path) -> _Opened:
    records = _json_records(source, path)
    first = next(records, None)
    if first is None:
        raise source.error("is empty; give one JSON record per line")

    def read(_columns: list[str]) -> Iterator[Record]:
        yield first
        yield from records

    return _Opened(list(first), read)


def _json_records(source: Source, path: Path) -> Iterator[Record]:
    """The records of JSON Lines, or of one JSON list."""
    with path.open(encoding="utf-8-sig") as file:
        is_list = file.read(1) == "["
        file.seek(0)
        # Decimal numbers as they are written: 0.10 stays 0.10.
        lines = (json.loads(line, parse_float=str) for line in file if line.strip())
        values = json.load(file, parse_float=str) if is_list else lines
        for number, value in enumerate(values, 1):
            if not isinstance(value, dict):
                raise source.error(f"cannot be read: record {number} is {value!r:.80}, give one JSON record per line")
            yield value


def _open_hub(source: Source) -> _Opened:
    """The split of the set on the hub, or of a folder copied from there."""
    try:
        import datasets
        from huggingface_hub.utils import logging as hub_logging
    except ModuleNotFoundError as error:
        mend = f"needs the package {error.name}; install meds-openrlhf[gpu], or give a file: {_offline(source)}"
        raise source.error(mend) from error
    dataset = source.dataset
    hub_logging.set_verbosity_error()  # each of its tries would be a warning
    datasets.disable_progress_bars()
    try:
        data = datasets.load_dataset(str(source), dataset.config, split=dataset.split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        mend = f"cannot be loaded ({_first_line(error)}); give a file of it: {_offline(source)}"
        raise source.error(mend) from error

    def read(columns: list[str]) -> Iterator[Record]:
        for table in data.select_columns(columns).with_format("arrow").iter(BATCH_ROWS):
            yield from table.to_pylist()

    return _Opened(data.column_names, read)


def _offline(source: Source) -> str:
    return f"--from {source.dataset.name}=FILE"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
