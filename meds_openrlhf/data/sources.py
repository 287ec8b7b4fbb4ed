"""Read data sets from the hub, a folder copied from there, a Parquet or a JSON file, each record as three texts.

Records are read in batches and yielded one by one, so that a large set is never in memory at once. A folder's card or
saved state names the files that are loaded: they have to be in the folder.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from meds_openrlhf.config.errors import ConfigError, how_to_install
from meds_openrlhf.data.catalog import DataSet
from meds_openrlhf.data.questions import answer_text, question_text
from meds_openrlhf.files import MOST_TEXT, lines_of, open_file, read_file, read_rest
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.runtime.hub import hub_answers
from meds_openrlhf.yaml_text import parse_yaml

BATCH_ROWS = 8192

# Possible names of these columns; the first that is present is used. A dot separates the fields of nested records.
# A prompt comes last because it may have a template around the question, a solution because the answer is inside it.
COLUMNS = {
    "question": ("question", "problem", "prompt"),
    "answer": ("answer", "final_answer", "reward_model.ground_truth", "ground_truth", "solution"),
}
LEVEL_COLUMN = "level"
WORKED_ANSWER = "solution"  # its text is no answer, only what it marks as one

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
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns of the roles `question` and `answer`, if they have other names than the usual ones."""

    def __str__(self) -> str:
        return str(self.path or self.dataset.hub)

    def error(self, hint: str) -> ConfigError:
        """The error to raise for this source."""
        return ConfigError("--from" if self.path else self.dataset.name, str(self), hint)


def read_rows(source: Source) -> Iterator[Row]:
    """Yield all rows of a set in its order.

    Raises ConfigError if the set cannot be reached or read, or lacks a column for the question, the answer or, if the
    set is filtered by it, the level.
    """
    try:
        records = _records(source)
        first = next(records, None)
        if first is None:
            raise source.error(f"is empty. {WANTED}")
        question, answer = _pick_columns(source, list(first))
        answer_as_text = partial(answer_text, is_worked=answer.rpartition(".")[2] == WORKED_ANSWER)
        for number, record in enumerate(chain([first], records), 1):
            try:
                level = (_text(record, LEVEL_COLUMN, answer_text) or "").removeprefix("Level").strip()
                row = Row(_text(record, question, question_text), _text(record, answer, answer_as_text), level)
            except (TypeError, UnicodeEncodeError) as error:
                raise source.error(f"record {number} cannot be read: {error}. Correct or remove it.") from error
            yield row
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise source.error(f"cannot be read: {_first_line(error)}") from error


def _pick_columns(source: Source, names: list[str]) -> list[str]:
    """The columns of question and answer among ``names``. Raises ConfigError if a needed column is missing."""
    picked, found = [], f"It has {', '.join(names)}."
    for own, (role, usual) in zip(source.dataset.columns, COLUMNS.items()):
        wanted = (source.columns[role],) if role in source.columns else usual
        candidates = wanted if role in source.columns else (own, *wanted)
        present = [column for column in candidates if column.split(".")[0] in names]
        if not present:
            named = ", ".join(wanted)
            raise source.error(f"has no column for the {role} ({named}). {found} Name it: --columns {role}=COLUMN")
        picked.append(present[0])
    if source.dataset.levels and LEVEL_COLUMN not in names:
        raise source.error(f"has no column {LEVEL_COLUMN}, by which {source.dataset.name} is filtered. {found}")
    return picked


def _text(record: Record, column: str, as_text: Callable[[Any], str | None]) -> str | None:
    """The column's text. Raises TypeError, or UnicodeEncodeError for half of a character, which JSON can hold."""
    value: Any = record
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    try:
        text = as_text(value)
    except TypeError as error:
        raise TypeError(f"{column}: {error}") from error
    (text or "").encode()
    return text


def _records(source: Source) -> Iterator[Record]:
    path = source.path
    if path is None or path.is_dir():
        return _hub_records(source)
    if not path.exists():
        raise source.error(f"does not exist. {WANTED}")
    if path.suffix == ".parquet":
        return _parquet_records(path)
    if path.suffix in (".jsonl", ".json"):
        return _json_records(source, path)
    raise source.error("must end in .parquet, .jsonl or .json.")


def _parquet_records(path: Path) -> Iterator[Record]:
    from meds_openrlhf.arrow_files import rows_of_parquet

    with open_file(path, named_by_user=True) as file:
        yield from rows_of_parquet(path, file)


def _json_records(source: Source, path: Path) -> Iterator[Record]:
    """The records of a JSON Lines file or of a JSON list."""
    with open_file(path, named_by_user=True) as file:
        begin = len(BOM_UTF8) if file.read(3) == BOM_UTF8 else 0
        file.seek(begin)
        is_list = file.read(1) == b"["
        file.seek(begin)
        texts = enumerate((line.decode() for line in lines_of(file, path)), 1)
        lines = (_parsed(source, line.rstrip(), number) for number, line in texts if line.strip())
        values = _parsed(source, read_rest(file, path, MOST_TEXT).decode()) if is_list else lines
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


def _hub_records(source: Source) -> Iterator[Record]:
    """The records of the set's split on the hub, or in a folder copied from there."""
    if source.path:
        require_own_files(source.path, "--from")
    dataset, hint = source.dataset, f"Give a file: --from {source.dataset.name}=FILE"
    try:
        import datasets
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise source.error(f"needs the package {error.name}; {how_to_install('gpu')}. {hint}") from error
    huggingface_hub.logging.set_verbosity_error()  # it would print a warning for every retry
    datasets.disable_progress_bars()
    if not source.path and not hub_answers():  # the client would retry for half a minute before it reads its cache
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        # Resolve the folder: the client would turn "." into an empty name.
        place = str(source.path.resolve() if source.path else dataset.hub)
        data = datasets.load_dataset(place, split=dataset.split, data_files=dataset.hub_file)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        # The client's messages about an unreachable hub are only class names.
        reason = "the hub cannot be reached" if isinstance(error, ConnectionError) else _first_line(error)
        raise source.error(f"cannot be loaded ({reason}). {WANTED if source.path else hint}") from error
    for table in data.with_format("arrow").iter(BATCH_ROWS):
        yield from table.to_pylist()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no reason given").splitlines()[0]


CARDS = ("README.md", ".huggingface.yaml")  # which `datasets` reads
_KEYS = ("data_files", "data_dir", "path", "filename", "splits")
MOST_NODES = 200_000  # of a set with thousands of configurations
STATES = ("state.json", "dataset_dict.json")  # of a folder that `save_to_disk` wrote, and of its splits
_HEAD = re.compile(r"^\s*---(?:\r\n|\r|\n)([\S\s]*?)(?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$)")  # as huggingface_hub's


def require_own_files(folder: Path, field: str) -> None:
    """Raise ConfigError, naming ``field``, if a file in ``folder`` names others outside of it, or cannot be read."""
    states = [path for name in STATES for path in (folder / name, *folder.glob(f"*/{name}"))]
    for path in (*(folder / name for name in CARDS), *states):
        try:
            content = _content(path) if path.exists() else None
        except (OSError, ValueError) as error:
            raise ConfigError(field, str(folder), f"has a {path.name} that cannot be read ({error}).") from error
        for name in _files_in(content):
            if ":" in name or Path(name).is_absolute() or ".." in Path(name).parts:
                hint = f"has a {path.name} that names {name}, which is not in the folder. Remove that, or name a file."
                raise ConfigError(field, str(folder), hint)


def _content(path: Path) -> Any:
    if path.name in STATES:
        return parse_json(read_file(path))
    text = read_file(path, MOST_TEXT).decode()
    head = _HEAD.match(text) if path.suffix == ".md" else None
    return parse_yaml(text if path.suffix != ".md" else head[1] if head else "", MOST_NODES)


def _files_in(content: Any, named: bool = False) -> Iterator[str]:
    """All texts below the keys that name files, at any depth."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _files_in(value, named or key in _KEYS)
    elif isinstance(content, list):
        for item in content:
            yield from _files_in(item, named)
    elif named and isinstance(content, str):
        yield content
