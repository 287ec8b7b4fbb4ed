"""The problem sets of an evaluation: names in a data folder, or files that `meds data prepare` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.catalog import CATALOG
from meds_openrlhf.evaluation.models.naming import LABEL
from meds_openrlhf.files import lines_of, open_file
from meds_openrlhf.gym.problem import is_label, require_made
from meds_openrlhf.json_text import parse_json

PAPERS = tuple(name for name, dataset in CATALOG.items() if dataset.kind == "benchmark")
SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Problem:
    """A problem: ``prompt`` with the template applied, ``answer`` as the benchmark gives it."""

    id: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Benchmark:
    """A named set of problems."""

    name: str
    problems: list[Problem]


def find_benchmarks(words: Sequence[str], data: Path) -> list[Benchmark]:
    """Read the problems of each word, a name for ``data/NAME.jsonl`` or a file's path.

    Raises ConfigError if a file is missing or holds something else, or if a name occurs twice.
    """
    paths = [_path(word, data) for word in words]
    names = [path.name.removesuffix(SUFFIX) for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise _error(name, "occurs twice, but results are stored by file name. Rename a file.")
        if not LABEL.fullmatch(name):
            raise _error(name, "becomes a file name of results. Use letters, digits and . _ @ + -")
    return [Benchmark(name, read_problems(path)) for name, path in zip(names, paths)]


def read_problems(path: Path) -> list[Problem]:
    """Read the problems in the order of the file. Numbers become strings as written.

    Raises ConfigError, with file, line and field, if the file is missing or empty, a line is not a JSON object, a field
    is missing, empty or neither text nor number, an id occurs twice, or a label of reasoning-gym makes no problem.
    """
    try:
        with open_file(path, named_by_user=True) as file:
            lines = [line.rstrip(b"\r\n") for line in lines_of(file, path)]
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from error
    if not lines:
        raise _error(path, "contains no problems. Make it again with `meds data prepare`.")
    problems: dict[str, Problem] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        fields = _fields(where, line)
        problem = Problem(*(_text(fields, key, where) for key in ("id", "prompt", "answer")))
        if problems.setdefault(problem.id, problem) is not problem:
            first = list(problems).index(problem.id) + 1
            raise _error(path, f"has the id {problem.id!r} twice, in lines {first} and {number}.")
    try:
        answers = enumerate((problem.answer for problem in problems.values()), start=1)
        require_made({f"line {number}": answer for number, answer in answers if is_label(answer)})
    except ValueError as error:
        raise _error(path, str(error)) from error
    return list(problems.values())


def _path(word: str, data: Path) -> Path:
    by_path = word.endswith(SUFFIX) or "/" in word
    path = Path(word) if by_path else data / f"{word}{SUFFIX}"
    if path.exists():
        return path
    if word in PAPERS:
        raise _error(word, f"is not at {path}. Make it with `meds data prepare {word}`.")
    raise _error(word, f"is not at {path}. Name a .jsonl file, or one of {', '.join(PAPERS)}.")


def _fields(where: str, line: bytes) -> dict[str, Any]:
    try:
        # Keep numbers as written: 0.10 stays 0.10, and long numbers keep all digits.
        fields = parse_json(line.decode(), parse_int=str, parse_float=str)
    except ValueError as error:
        raise _error(where, f"is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise _error(where, "is not a JSON object, as a problem must be.")
    return fields


def _text(fields: dict[str, Any], key: str, where: str) -> str:
    if key not in fields:
        present = ", ".join(sorted(fields)) or "none"
        raise _error(where, f"has no field {key!r}; it has {present}. Make the file with `meds data prepare`.")
    text = fields[key]
    if not isinstance(text, str) or not text.strip():
        raise _error(where, f"has {json.dumps(text)} in the field {key!r}, which must be a text or a number.")
    return text


def _error(value: object, hint: str) -> ConfigError:
    return ConfigError("--benchmarks", str(value), hint)
