"""Sampled responses on disk: a JSON Lines file per model and benchmark, so that evaluations can resume.

Each line is a sample with the fields of `Sample`. Lines are only appended. A crash can leave an incomplete last line;
the next writer truncates it. Any other damage is an error and never silently drops a sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.problems import Problem
from meds_openrlhf.files import append_whole, cut_torn_line, lines_of, open_file, open_own, sync_folder
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.locks import try_lock


@dataclass(frozen=True)
class Sample:
    """A response to a problem: its ``index`` among the problem's samples, its text and its verdict.

    ``tokens`` counts the response's tokens; ``truncated`` is whether it was cut at the length limit; ``answer`` is its
    final answer, None if it has none; ``right`` is whether that answer is right.
    """

    problem: str
    index: int
    text: str
    tokens: int
    truncated: bool
    answer: str | None
    right: bool


class SampleStore:
    """The samples of a model on a benchmark, open for writing by a single process until `close`.

    Raises ConfigError if another process has the file open for writing or the file is damaged (with file and line).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_own(path)
        try:
            if not try_lock(self._file.fileno(), optional=True):  # held until the file is closed
                hint = "is being written by another process. Wait until it ends, or stop it."
                raise ConfigError("samples", str(path), hint)
            sync_folder(path.parent)
            samples = iterate_samples(path, texts=False)
            self._right = {(sample.problem, sample.index): sample.right for sample in samples}
            cut_torn_line(self._file.fileno())
        except BaseException:  # release the lock, also on Ctrl-C
            self.close()
            raise

    def append(self, samples: Sequence[Sample]) -> None:
        """Append samples durably: after a crash the file has all of them or the first few, each complete.

        Raises OSError on a full disk. On an error or an interrupt, no sample is added.
        """
        append_whole(self._file.fileno(), "".join(f"{json.dumps(asdict(sample))}\n" for sample in samples).encode())
        self._right.update({(sample.problem, sample.index): sample.right for sample in samples})

    def verdicts(self, n: int) -> list[bool]:
        """Whether each sample with an index below ``n`` is right."""
        return [right for (_, index), right in self._right.items() if index < n]

    def missing(self, problems: Sequence[Problem], n: int) -> list[tuple[Problem, list[int]]]:
        """Problems that lack samples, each with its missing indices below ``n``.

        Raises ConfigError if the file holds samples of problems that are not in ``problems``.
        """
        unknown = sorted({problem for problem, _ in self._right} - {problem.id for problem in problems})
        if unknown:
            hint = f"contains samples of other problems ({unknown[0]!r}). Evaluate into another folder."
            raise ConfigError("samples", str(self._path), hint)
        wanted = [
            (problem, [index for index in range(n) if (problem.id, index) not in self._right]) for problem in problems
        ]
        return [(problem, indices) for problem, indices in wanted if indices]

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def iterate_samples(path: Path, *, texts: bool = True) -> Iterator[Sample]:
    """Read the samples in a file, also while it is being written: an incomplete last line is ignored.

    ``texts`` False leaves them empty: they can be gigabytes. Raises ConfigError, with the file and the line, for any
    other damage and if a sample occurs twice.
    """
    seen: set[tuple[str, int]] = set()
    with open_file(path) as file:
        for number, line in enumerate(lines_of(file, path), start=1):
            if not line.endswith(b"\n"):
                return
            try:
                sample = Sample(**parse_json(line.decode()))  # json.loads would guess the encoding of bytes
                _require_types(sample)
                if (sample.problem, sample.index) in seen:
                    raise ValueError(f"sample {sample.index} of problem {sample.problem!r} occurs twice")
            except (ValueError, TypeError) as error:  # TypeError: other fields than a sample's
                hint = f"is damaged ({error}). Restore the file from a backup, or remove it and sample again."
                raise ConfigError("samples", f"{path}, line {number}", hint) from error
            seen.add((sample.problem, sample.index))
            yield sample if texts else replace(sample, text="")


def _require_types(sample: Sample) -> None:
    """Raise TypeError unless each value has its field's type: JSON holds anything, and NaN for a number."""
    kinds = {"problem": str, "index": int, "text": str, "tokens": int, "truncated": bool, "right": bool}
    wrong = [name for name, kind in kinds.items() if type(getattr(sample, name)) is not kind]
    if wrong or not isinstance(sample.answer, (str, type(None))) or sample.index < 0:
        raise TypeError(f"{', '.join(wrong) or 'answer or index'} has another type than a sample's")
