"""Samples of an evaluation: the blocks in which engines draw them, and the files that keep them.

A block is some samples of a problem, independent of engine, order and restarts. Every sample has its own seed, derived
from the evaluation's seed, the problem's id and the sample's index, so the requests are the same for any number and
order of engines. Results can still differ in rare tokens: vLLM's summation order depends on the other requests in a
batch, which changes the last bits of the probabilities.

A file holds the samples of a model on a benchmark, so that evaluations can resume: JSON Lines with the fields of
`Sample`. Lines are only appended. A crash can leave an incomplete last line; the next writer truncates it. Any other
damage is an error and never silently drops a sample.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.request import Problem, Settings
from meds_openrlhf.files import append_whole, cut_torn_line, lines_of, open_file, open_own, sync_folder
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.locks import try_lock

BLOCK_SAMPLES = 16
# Sequences in vLLM's running batch, on a GPU and on a CPU.
SEQUENCES, SEQUENCES_ON_CPU = 256, 128


@dataclass(frozen=True)
class EngineSettings:
    """The model that an engine loads, and how it is sampled. ``max_model_len`` is in tokens."""

    model: str
    revision: str | None  # of a model on the hub
    tensor_parallel: int
    max_model_len: int
    on_cpu: bool
    sampling: Settings
    trust_remote_code: bool = False

    @property
    def sequences(self) -> int:
        """The number of sequences in vLLM's running batch."""
        return SEQUENCES_ON_CPU if self.on_cpu else SEQUENCES

    @property
    def in_flight(self) -> int:
        """The number of blocks that keep the engine busy: a full batch, and two more in the queue."""
        return self.sequences // BLOCK_SAMPLES + 2


@dataclass(frozen=True)
class Block:
    """Samples ``indices`` of one problem, with its prompt as token ids."""

    benchmark: str
    problem: Problem
    tokens: tuple[int, ...]
    indices: tuple[int, ...]


def sample_seed(seed: int, problem: str, index: int) -> int:
    """The seed of a sample: 63 bits, so that it fits into a signed 64-bit integer."""
    digest = hashlib.sha256(f"{seed}\0{index}\0{problem}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def make_blocks(
    benchmark: str, missing: Sequence[tuple[Problem, Sequence[int]]], tokens: Mapping[str, tuple[int, ...]]
) -> list[Block]:
    """All missing samples in blocks of up to 16. ``tokens`` are the prompts' token ids by problem id.

    The first blocks of all problems come before any second block, so that progress figures cover the whole benchmark.
    """
    longest = max((len(indices) for _, indices in missing), default=0)
    return [
        Block(benchmark, problem, tokens[problem.id], tuple(indices[start : start + BLOCK_SAMPLES]))
        for start in range(0, longest, BLOCK_SAMPLES)
        for problem, indices in missing
        if start < len(indices)
    ]


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


class SampleStore(AbstractContextManager["SampleStore"]):
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
