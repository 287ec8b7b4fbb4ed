"""The problem sets of an evaluation: names in a data folder, or files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.data.catalog import CATALOG
from meds_openrlhf.evaluation.models.naming import LABEL
from meds_openrlhf.evaluation.problems import Problem, read_problems

PAPERS = tuple(name for name, dataset in CATALOG.items() if dataset.kind == "benchmark")
SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Benchmark:
    """A named set of problems."""

    name: str
    problems: list[Problem]


def find_benchmarks(words: Sequence[str], data: Path) -> list[Benchmark]:
    """Read the problems of each word, a name for ``data/NAME.jsonl`` or a file's path; commas may join words.

    Raises ConfigError if a file is missing or holds something else, or if a name occurs twice.
    """
    paths = [_path(name, data) for word in words for name in word.split(",") if name]
    if not paths:
        raise ConfigError("--benchmarks", " ".join(words), f"names no benchmark. Choose from {', '.join(PAPERS)}.")
    names = [path.name.removesuffix(SUFFIX) for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("--benchmarks", name, "occurs twice, but results are stored by file name. Rename a file.")
        if not LABEL.fullmatch(name):
            raise ConfigError("--benchmarks", name, "becomes a file name of results. Use letters, digits and . _ @ + -")
    return [Benchmark(name, read_problems(path)) for name, path in zip(names, paths)]


def _path(word: str, data: Path) -> Path:
    by_path = word.endswith(SUFFIX) or "/" in word
    path = Path(word) if by_path else data / f"{word}{SUFFIX}"
    if path.is_file():
        return path
    meant = Path(f"{word.removesuffix('.json')}{SUFFIX}")
    if meant.is_file():
        raise ConfigError("--benchmarks", word, f"is neither a {SUFFIX} file nor in {data}. Did you mean {meant}?")
    if word in PAPERS:
        raise ConfigError("--benchmarks", word, f"is not at {path}. Make it with `meds data prepare {word}`.")
    if by_path:
        raise ConfigError("--benchmarks", word, f"does not exist (looked in {Path.cwd()}).")
    known = f"Name a .jsonl file, or one of {', '.join(PAPERS)}."
    raise ConfigError("--benchmarks", word, f"is not at {path}. {known}")
