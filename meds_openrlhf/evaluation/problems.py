"""A benchmark's problems, from the JSON lines that `meds data prepare` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.json_text import parse_json


@dataclass(frozen=True)
class Problem:
    """A problem: ``prompt`` with the template applied, ``answer`` as the benchmark gives it."""

    id: str
    prompt: str
    answer: str


def read_problems(
    path: Path, *, input_key: str = "prompt", label_key: str = "answer", id_key: str = "id"
) -> list[Problem]:
    """Read the problems in the order of the file; the keys name the fields. Numbers become strings as written.

    Raises ConfigError, with file, line and field, if the file is missing or empty, a line is not a JSON object, a field
    is missing, empty or neither text nor number, or an id occurs twice.
    """
    lines_of_ids: dict[str, int] = {}
    problems = []
    for number, line in enumerate(_lines(path), start=1):
        where, fields = f"{path}, line {number}", _fields(path, number, line)
        problem = Problem(*(_text(fields, key, where) for key in (id_key, input_key, label_key)))
        if problem.id in lines_of_ids:
            lines = f"{lines_of_ids[problem.id]} and {number}"
            raise ConfigError("--benchmarks", str(path), f"has the {id_key} {problem.id!r} twice, in lines {lines}.")
        lines_of_ids[problem.id] = number
        problems.append(problem)
    return problems


def _lines(path: Path) -> list[bytes]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError("--benchmarks", str(path), f"cannot be read: {error.strerror}") from error
    if not lines:
        raise ConfigError("--benchmarks", str(path), "contains no problems. Make it again with `meds data prepare`.")
    return lines


def _fields(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        # Keep numbers as written: 0.10 stays 0.10, and long numbers keep all digits.
        fields = parse_json(line.decode(), parse_int=str, parse_float=str, parse_constant=_refuse)
    except ValueError as error:
        raise ConfigError("--benchmarks", f"{path}, line {number}", f"is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError("--benchmarks", f"{path}, line {number}", "is not a JSON object, as a problem must be.")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _text(fields: dict[str, Any], key: str, where: str) -> str:
    if key not in fields:
        present = f"has no field {key!r}, but {', '.join(sorted(fields)) or 'none'}"
        raise ConfigError("--benchmarks", where, f"{present}. Make the file with `meds data prepare`.")
    text = fields[key]
    if not isinstance(text, str) or not text.strip():
        hint = f"has {json.dumps(text)} in the field {key!r}, which must be a text or a number."
        raise ConfigError("--benchmarks", where, hint)
    return text
