"""Read data sets: records from the hub, a folder, a Parquet or JSON file, each as a row of three strings.

Records are read in batches and yielded one by one, so that a large set is never in memory at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.answers import answer_text
from meds_openrlhf.data.catalog import DataSet
from meds_openrlhf.data.questions import question_text
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.rewards.boxed import last_boxed
from meds_openrlhf.runtime.hub import hub_answers

BATCH_ROWS = 8192

# Possible names of these columns; the first that is present is used. A dot separates the fields of nested records.
# A prompt comes last because it may have a template around the question, a solution because the answer is inside it.
QUESTION_COLUMNS = ("question", "problem", "prompt")
ANSWER_COLUMNS = ("answer", "final_answer", "reward_model.ground_truth", "ground_truth", "solution")
LEVEL_COLUMN = "level"
# The answer is the content of this column's last box.
WORKED_ANSWER = "solution"

WANTED = "Give a Parquet or JSON file, or a folder copied from the hub."

Record = dict[str, Any]


class Row(NamedTuple):
    """A record as strings: question and answer are None if missing, the level is empty if missing."""

    question: str | None
    answer: str | None
    level: str


@dataclass(frozen=True)
class Source:
    """A set and its location: ``path``, or the hub if that is None."""

    dataset: DataSet
    path: Path | None = None

    def __str__(self) -> str:
        return str(self.path or self.dataset.hub)

    @property
    def needs_hub(self) -> bool:
        """Whether the set is on the hub, rather than in a file or folder."""
        return self.path is None and not Path(str(self.dataset.hub)).exists()

    def error(self, hint: str) -> ConfigError:
        """The error to raise for this source."""
        if self.path is None:
            return ConfigError(self.dataset.name, self.dataset.hub, hint)
        return ConfigError("--from", str(self.path), hint)


@dataclass(frozen=True)
class Columns:
    """The columns that make up a row."""

    question: str
    answer: str
    level: str | None

    @property
    def heads(self) -> list[str]:
        """The top-level columns of the file that contain them."""
        return [column.split(".")[0] for column in (self.question, self.answer, self.level) if column]


@dataclass(frozen=True)
class _Opened:
    names: list[str]
    read: Callable[[list[str]], Iterable[Record]]
    """Returns the records, with at least the requested columns."""


def read_rows(source: Source) -> Iterator[Row]:
    """Yield all rows of a set in its order.

    Raises ConfigError if the set cannot be reached or read, or lacks a column for the question, the answer or, if the
    set is filtered by it, the level.
    """
    try:
        opened = _open(source)
        columns = pick_columns(source, opened.names)
        for number, record in enumerate(opened.read(columns.heads), 1):
            try:
                row = _row(record, columns)
            except TypeError as error:
                raise source.error(f"record {number} cannot be read: {error}. Correct or remove it.") from error
            yield row
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # Arrow's and JSON's errors are ValueErrors
        raise source.error(f"cannot be read: {_first_line(error)}") from error


def pick_columns(source: Source, names: list[str]) -> Columns:
    """Choose the columns to read from ``names``. Raises ConfigError if a required column is missing."""
    own_question, own_answer = [[column] for column in source.dataset.columns] if source.dataset.columns else ([], [])
    question = _first_present([*own_question, *QUESTION_COLUMNS], names)
    answer = _first_present([*own_answer, *ANSWER_COLUMNS], names)
    level = _first_present((LEVEL_COLUMN,), names)
    found = f"It has {', '.join(names) or 'none'}."
    if question is None:
        raise source.error(f"has no column for the question ({', '.join(QUESTION_COLUMNS)}). {found}")
    if answer is None:
        raise source.error(f"has no column for the answer ({', '.join(ANSWER_COLUMNS)}). {found}")
    if source.dataset.levels and level is None:
        raise source.error(f"has no column {LEVEL_COLUMN}, by which {source.dataset.name} is filtered. {found}")
    return Columns(question, answer, level)


def _first_present(wanted: Iterable[str], names: list[str]) -> str | None:
    return next((column for column in wanted if column.split(".")[0] in names), None)


# ── a record ──


def _row(record: Record, columns: Columns) -> Row:
    question = _text_of(record, columns.question, question_text)
    answer = _text_of(record, columns.answer, _boxed_answer if columns.answer == WORKED_ANSWER else answer_text)
    level = _text_of(record, columns.level, answer_text) if columns.level else None
    return Row(question, answer, (level or "").removeprefix("Level").strip())


def _text_of(record: Record, column: str, as_text: Callable[[Any], str | None]) -> str | None:
    value = _value(record, column)
    try:
        text = as_text(value)
        (text or "").encode()  # JSON can hold a lone surrogate, which UTF-8 cannot encode
    except TypeError as error:
        raise TypeError(f"{column}: {error}") from error
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise TypeError(f"{column}: {half!r} is half of a character") from error
    return text


def _boxed_answer(value: Any) -> str | None:
    return answer_text(last_boxed(value) if isinstance(value, str) else value)


def _value(record: Record, column: str) -> Any:
    value: Any = record
    for name in column.split("."):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise TypeError(f"{column}: {value!r:.80} is not a record with {name}")
        value = value.get(name)
    return value


# ── sources of records ──


def _open(source: Source) -> _Opened:
    path = source.path
    if path is None or path.is_dir():
        return _open_hub(source)
    if not path.exists():
        raise source.error(f"does not exist. {WANTED}")
    if path.suffix == ".parquet":
        return _open_parquet(path)
    if path.suffix in (".jsonl", ".json"):
        return _open_json(source, path)
    raise source.error("must end in .parquet, .jsonl or .json.")


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
        raise source.error("is empty. Give one JSON object per line.")

    def read(_columns: list[str]) -> Iterator[Record]:
        yield first
        yield from records

    return _Opened(list(first), read)


def _json_records(source: Source, path: Path) -> Iterator[Record]:
    """The records of a JSON Lines file or of a JSON list."""
    with path.open(encoding="utf-8-sig") as file:
        is_list = file.read(1) == "["
        file.seek(0)
        lines = (_parsed(source, line.rstrip(), number) for number, line in enumerate(file, 1) if line.strip())
        values = _parsed(source, file.read()) if is_list else lines
        for number, value in enumerate(values, 1):
            if not isinstance(value, dict):
                raise source.error(f"record {number} is {value!r:.80}. Give one JSON object per line.")
            yield value


def _parsed(source: Source, text: str, line: int = 1) -> Any:
    """Parse ``text``, which begins at line ``line`` of the file."""
    try:
        return parse_json(text, parse_float=str)  # keep decimals as written: 0.10 stays 0.10
    except json.JSONDecodeError as error:
        place = f"line {line + error.lineno - 1}, column {error.colno}"
        raise source.error(f"is not JSON in {place} ({error.msg}). Give one JSON object per line.") from error


# ── the hub ──


def check_hub(sources: Sequence[Source]) -> None:
    """Raise ConfigError, naming all of them, if the hub is unreachable and sets are not in its local cache either."""
    wanted = [source for source in sources if source.needs_hub]
    if not wanted:
        return
    datasets = _client(wanted[0])
    if hub_answers():
        return
    import huggingface_hub.constants

    # Offline, the client reads its cache without trying the hub first.
    datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    missing = [source for source in wanted if not _is_cached(source)]
    if missing:
        files = " ".join(_offline(source) for source in missing)
        names = " ".join(source.dataset.name for source in missing)
        raise ConfigError("SET", names, f"the hub cannot be reached. Give files: {files}")


def _is_cached(source: Source) -> bool:
    try:
        _open_hub(source)
    except ConfigError:
        return False
    return True


def _client(source: Source) -> Any:
    """Import the package `datasets` and silence its output."""
    try:
        import datasets
        from huggingface_hub.utils import logging as hub_logging
    except ModuleNotFoundError as error:
        hint = f"needs the package {error.name}. Install meds-openrlhf[gpu], or give a file: {_offline(source)}"
        raise source.error(hint) from error
    hub_logging.set_verbosity_error()  # it would print a warning for every retry
    datasets.disable_progress_bars()
    return datasets


def _open_hub(source: Source) -> _Opened:
    """Open the set's split on the hub, or in a folder copied from there."""
    datasets, dataset = _client(source), source.dataset
    try:
        # Resolve the folder: the client would turn "." into an empty name.
        place = str(source.path.resolve() if source.path else dataset.hub)
        data = datasets.load_dataset(place, split=dataset.split, data_files=dataset.hub_file)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        # The client's messages about an unreachable hub are only class names.
        reason = "the hub cannot be reached" if isinstance(error, ConnectionError) else _first_line(error)
        hint = WANTED if source.path else f"Give a file: {_offline(source)}"
        raise source.error(f"cannot be loaded ({reason}). {hint}") from error

    def read(columns: list[str]) -> Iterator[Record]:
        for table in data.select_columns(columns).with_format("arrow").iter(BATCH_ROWS):
            yield from table.to_pylist()

    return _Opened(data.column_names, read)


def _offline(source: Source) -> str:
    return f"--from {source.dataset.name}=FILE"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no reason given").splitlines()[0]
