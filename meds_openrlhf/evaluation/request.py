"""What an evaluation is asked for: its request, the problem sets, and the settings of a label.

Problem sets are names in a data folder, or files that `meds data prepare` writes. The settings of a label are written
before its first sample, and shared by all its samples.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.schema import Pattern
from meds_openrlhf.config.section import fit
from meds_openrlhf.data.catalog import CATALOG
from meds_openrlhf.files import lines_of, open_file, read_file, write_atomically
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.paths import inside

PAPERS = tuple(name for name, dataset in CATALOG.items() if dataset.kind == "benchmark")
SUFFIX = ".jsonl"
# Of models and benchmarks; they name folders, files and table rows.
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,99}")
MAX_TOKENS = 7168  # of a response, if no run says how long its own were: the paper's for Qwen3
SETTINGS = "settings.json"
# The flag for each setting of a label, and the settings that must agree for labels to be comparable.
_COMPARED = {
    **{"temperature": "--temperature", "top_p": "--top-p", "max_tokens": "--max-tokens"},
    "answer_pattern": "--answer-pattern",
}
_KINDS: dict[str, Any] = {"model": str, "fingerprint": str, "benchmarks": dict, "seed": int, "max_tokens": int}
_FLAGS = {"fingerprint": "MODEL", **_COMPARED, "seed": "--seed"}


@dataclass(frozen=True)
class Problem:
    """A problem: ``prompt`` with the template applied, ``answer`` as the benchmark gives it."""

    id: str
    prompt: str
    answer: str


def find_benchmarks(words: Sequence[str], data: Path) -> dict[str, list[Problem]]:
    """Read the problems of each word, a name for ``data/NAME.jsonl`` or a file's path; returns them by name.

    Raises ConfigError if a file is missing or holds something else, or if a name occurs twice.
    """
    paths = [_path(word, data) for word in words]
    names = [path.name.removesuffix(SUFFIX) for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise _error(name, "occurs twice, but results are stored by file name. Rename a file.")
        if not LABEL.fullmatch(name):
            raise _error(name, "becomes a file name of results. Use letters, digits and . _ @ + -")
    return {name: read_problems(path) for name, path in zip(names, paths)}


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
    from meds_openrlhf.gym.problem import is_label, require_made

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


@dataclass(frozen=True)
class Request:
    """The user's request. ``engines`` None: as many as fit. Raises ConfigError for impossible numbers.

    ``max_tokens`` and ``answer_pattern`` None: as the runs trained.
    """

    models: tuple[str, ...]
    benchmarks: tuple[str, ...]
    out: Path
    data: Path
    n: int
    temperature: float
    top_p: float
    seed: int
    max_tokens: int | None
    engines: int | None
    tensor_parallel: int
    wait_seconds: float
    on_cpu: bool
    answer_pattern: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        counts = {"--n": self.n, "--max-tokens": self.max_tokens, "--engines": self.engines}
        for flag, number in {**counts, "--tensor-parallel": self.tensor_parallel}.items():
            if number is not None and number < 1:
                raise ConfigError(flag, number, "must be at least 1.")
        if not 0 <= self.temperature <= 2:
            raise ConfigError("--temperature", self.temperature, "must be between 0 and 2.")
        if not 0 < self.top_p <= 1:
            raise ConfigError("--top-p", self.top_p, "must be above 0 and at most 1.")
        if not 0 <= self.wait_seconds < math.inf:
            raise ConfigError("--wait", self.wait_seconds, "must be a finite number of seconds, 0 or more.")
        fit(self.answer_pattern, Pattern | None, "--answer-pattern")


@dataclass(frozen=True)
class Settings:
    """``fingerprint`` identifies the model's weights independent of its path; ``benchmarks`` are problem hashes."""

    model: str
    fingerprint: str
    temperature: float
    top_p: float
    seed: int
    max_tokens: int
    benchmarks: dict[str, str]
    answer_pattern: str | None = None

    def difference(self, other: Settings) -> str | None:
        """Why ``other``'s samples cannot be compared with these, e.g. ``temperature 0.6``; None if they can."""
        for name in _COMPARED:
            if getattr(self, name) != getattr(other, name):
                value = getattr(other, name)
                return f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value!r}"
        strange = [name for name, digest in self.benchmarks.items() if other.benchmarks.get(name, digest) != digest]
        return f"other problems of {strange[0]}" if strange else None


def problems_hash(problems: Sequence[Problem]) -> str:
    """Hash the problems' ids, prompts and answers, independent of their file and its keys."""
    content = json.dumps([[problem.id, problem.prompt, problem.answer] for problem in problems])
    return hashlib.sha256(content.encode()).hexdigest()


def read_settings(folder: Path) -> Settings | None:
    """Read a label's settings; None if the folder is not a label's. Raises ConfigError if they cannot be read."""
    path = inside(folder, SETTINGS, "--out")
    if not path.is_file():
        return None
    try:
        settings = Settings(**parse_json(read_file(path)))
        for name, kind in _KINDS.items():
            if not isinstance(getattr(settings, name), kind):
                raise TypeError(f"{name} has another type")
        return settings
    except (ValueError, TypeError, OSError) as error:
        hint = f"cannot be read as the settings of a label ({error}). Name another folder."
        raise ConfigError("--out", str(path), hint) from error


def check_settings(folder: Path, wanted: Settings) -> Settings:
    """The settings to write into the label's folder: ``wanted``, with the benchmarks that are there already.

    Raises ConfigError if the samples in the folder were drawn with other settings.
    """
    present = read_settings(folder)
    if present is None:
        return wanted

    def refusal(flag: str, value: object, found: object) -> ConfigError:
        hint = f"does not fit the samples in {folder}, drawn with {found}. Name another label or --out."
        return ConfigError(flag, value, hint)

    for name, flag in _FLAGS.items():
        if getattr(present, name) != getattr(wanted, name):
            shown = "model" if name == "fingerprint" else name
            given, found = getattr(wanted, shown), getattr(present, shown)
            raise refusal(flag, given, "other weights of that name" if found == given else found)
    for benchmark, digest in wanted.benchmarks.items():
        if present.benchmarks.get(benchmark, digest) != digest:
            raise refusal("--benchmarks", benchmark, "other problems of that name")
    return replace(present, benchmarks={**present.benchmarks, **wanted.benchmarks})


def write_settings(folder: Path, settings: Settings) -> None:
    """Write the settings durably; call before the label's first sample."""
    write_atomically(folder / SETTINGS, json.dumps(asdict(settings), indent=1) + "\n")
