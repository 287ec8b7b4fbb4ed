"""Sampled responses on disk: a JSON Lines file per model and benchmark, so that evaluations go on where they ended.

A line is one sample, its fields those of `Sample`. Lines are only ever added. What a crash leaves is a last line
without its end; whoever opens the file to write cuts it off. Every other damage is an error, never a sample fewer.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.files import sync_folder


@dataclass(frozen=True)
class Sample:
    """One response to a problem: its ``index`` among the problem's samples, and what became of it.

    ``tokens`` counts the response's tokens; ``truncated`` says that it was cut at the length limit; ``answer`` is what
    it gave as its final answer, None without one; ``right`` is the verdict on that.
    """

    problem: str
    index: int
    text: str
    tokens: int
    truncated: bool
    answer: str | None
    right: bool


_TYPES: dict[str, tuple[type, ...]] = {
    "problem": (str,),
    "index": (int,),
    "text": (str,),
    "tokens": (int,),
    "truncated": (bool,),
    "answer": (str, type(None)),
    "right": (bool,),
}


class SampleStore:
    """The samples of one model on one benchmark, open for writing: by one process at a time, until `close`.

    Raises ConfigError where another process writes to the file, and for damage, with the file and the line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _lock(self._descriptor, path)
            sync_folder(path.parent)
            self._right = {(sample.problem, sample.index): sample.right for sample in iterate_samples(path)}
            self._cut_torn_line()
        except BaseException:  # Ctrl-C in a long file included: the lock goes
            self.close()
            raise

    def append(self, samples: Sequence[Sample]) -> None:
        """Add samples, durably: after a crash there are all of them or the first few, each whole.

        Raises ValueError for a sample that is there already, and OSError on a full disk; then, and where it is
        interrupted, none is added.
        """
        keys = [(sample.problem, sample.index) for sample in samples]
        for (problem, index), times in Counter(keys).items():
            if times > 1 or (problem, index) in self._right:
                raise ValueError(f"{self._path}: sample {index} of problem {problem!r} comes twice")
        size = os.fstat(self._descriptor).st_size
        try:
            _write("".join(f"{json.dumps(asdict(sample))}\n" for sample in samples).encode(), self._descriptor)
        except BaseException:  # Ctrl-C included: no half of a block stays
            os.ftruncate(self._descriptor, size)
            raise
        self._right.update(zip(keys, (sample.right for sample in samples)))

    def samples(self) -> list[Sample]:
        """All samples, in the order in which they were added."""
        return list(iterate_samples(self._path))

    def verdicts(self, n: int) -> list[bool]:
        """Of each sample with an index below ``n`` whether it is right."""
        return [right for (_, index), right in self._right.items() if index < n]

    def missing(self, problems: Sequence[Problem], n: int) -> list[tuple[Problem, list[int]]]:
        """Problems that lack samples, each with the indices below ``n`` that are not there yet.

        Raises ConfigError where the file holds samples of other problems: it belongs to another benchmark.
        """
        unknown = sorted({problem for problem, _ in self._right} - {problem.id for problem in problems})
        if unknown:
            raise ConfigError(
                "samples", str(self._path), f"are of other problems ({unknown[0]!r}); evaluate into another folder"
            )
        wanted = [
            (problem, [index for index in range(n) if (problem.id, index) not in self._right]) for problem in problems
        ]
        return [(problem, indices) for problem, indices in wanted if indices]

    def close(self) -> None:
        """Let others write; closed already, nothing happens."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def _cut_torn_line(self) -> None:
        whole = 0
        with self._path.open("rb") as file:
            for line in file:
                whole += len(line) if line.endswith(b"\n") else 0
        if whole < os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, whole)
            os.fsync(self._descriptor)


def iterate_samples(path: Path) -> Iterator[Sample]:
    """The samples in a file, which may be being written: a last line without its end is none yet.

    Raises ConfigError for any other damage and for a sample that comes twice, with the file and the line.
    """
    seen: set[tuple[str, int]] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                sample = _sample(line)
                if (sample.problem, sample.index) in seen:
                    raise ValueError(f"sample {sample.index} of problem {sample.problem!r} comes twice")
            except ValueError as error:
                hint = f"is damaged ({error}); restore the file from a backup, or remove it and sample again"
                raise ConfigError("samples", f"{path}, line {number}", hint) from error
            seen.add((sample.problem, sample.index))
            yield sample


def _sample(line: bytes) -> Sample:
    """Raises ValueError where the line is not what `SampleStore.append` wrote."""
    fields = json.loads(line.decode())  # of bytes it would guess the encoding
    if not isinstance(fields, dict) or set(fields) != set(_TYPES):
        raise ValueError(f"a sample has the fields {', '.join(_TYPES)}")
    for name, types in _TYPES.items():
        if type(fields[name]) not in types:  # True is an int by inheritance only
            raise ValueError(f"{name} is {json.dumps(fields[name])[:40]}")
    return Sample(**fields)


def _lock(descriptor: int, path: Path) -> None:
    """Held until the descriptor is closed, or the process ends, however it ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            "samples", str(path), "are being written by another process; wait for it or end it"
        ) from error


def _write(lines: bytes, descriptor: int) -> None:
    """One write; the system may take less of it (2 GB at most, or what the disk has left), so the rest follows."""
    rest = memoryview(lines)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
