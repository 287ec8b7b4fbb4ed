"""The files of a dump: which there are, what their names say, and their lines as rows."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from meds_openrlhf.arrow_files import rows_of_parquet
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.pickled import samples_of
from meds_openrlhf.dumps.unpack import INSPECT_SAMPLE
from meds_openrlhf.files import MOST_TEXT, lines_of, open_file, read_rest, require_size, require_unpacked
from meds_openrlhf.json_text import parse_json

SUFFIXES = (".jsonl", ".json", ".parquet", ".pt", ".eval", ".jsonl.zst", ".jsonl.gz")
STDIN = Path("-")
UNREADABLE = (
    OSError, ValueError, TypeError, LookupError, RuntimeError, EOFError, pickle.UnpicklingError, BadZipFile, zlib.error,
    AttributeError, MemoryError, OverflowError, struct.error,
)  # fmt: skip
_STEP = re.compile(r"(?<![a-z])step[_-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_EVALUATION = re.compile(r"(?<![a-z])(?:evals?|evaluations?|val|valid|validation)(?![a-z])", re.IGNORECASE)
_INSPECT_SAMPLE = re.compile(r"samples/.*_epoch_\d+(?:\.json|/sample\.json)")
_ZSTD = 93  # in a zip


@dataclass
class DumpFile:
    """A file, and its path ``below`` the folder that the user named."""

    path: Path
    below: str
    named: bool  # by the user
    _pipe: BinaryIO | None = field(default=None, repr=False)

    @property
    def is_evaluation(self) -> bool:
        """Whether its path says so: ``eval_rollouts.jsonl``, ``val_data_step0.jsonl``, ``eval/``."""
        return bool(_EVALUATION.search(self.below))

    def step(self, pattern: str | None) -> int | None:
        """The step that its path names: ``step_12/`` or ``train_data_step12.jsonl``, or its name by the ``pattern``."""
        found = list(_STEP.finditer(self.below))
        named = re.search(pattern, self.path.name) if pattern else None
        return int(named[1]) if named else int(found[-1][1]) if found else None

    @property
    def size(self) -> int:
        """About how many bytes it has unpacked; of a pipe 0."""
        packed = self.path.suffix.lower() in (".zst", ".gz", ".parquet", ".eval")
        return 0 if self.path == STDIN else self.path.stat().st_size * (10 if packed else 1)

    @property
    def series(self) -> str:
        """Its folder without the step's number: files of one run have the same."""
        return "standard input" if self.path == STDIN else _STEP.sub("", str(self.path.parent))

    @property
    def order(self) -> list[Any]:
        """To sort by path, with the numbers in it by value."""
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(self.path))]

    def rows(self) -> Iterator[tuple[str, Any]]:
        """Each line with its place; None for what is no JSON object. Raises one of `UNREADABLE`."""
        readers: dict[str, Callable[[Path, BinaryIO], Iterator[tuple[str, Any]]]] = {
            ".parquet": _rows_of_parquet, ".pt": _rows_of_torch, ".eval": _rows_of_inspect, ".json": _rows_of_json,
            ".zst": _rows_of_zstd, ".gz": _rows_of_gzip,
        }  # fmt: skip
        if self._pipe is not None:
            self._pipe.seek(0)
            yield from _rows_of_lines(self.path, self._pipe)
            return
        path = Path("/dev/stdin") if self.path == STDIN else self.path
        file = open_file(path, named_by_user=self.named)
        if self.named and not stat.S_ISREG(os.stat(path).st_mode):
            self._pipe = file  # a pipe gives its lines once
            yield from self.rows()
            return
        with file:
            yield from readers.get(path.suffix.lower(), _rows_of_lines)(self.path, file)


def find_files(given: Sequence[Path], without: Path | None) -> list[DumpFile]:
    """The files and those in the folders, in the order of their paths. Raises ConfigError if there is none.

    A folder ``without`` inside the given ones, such as an earlier atlas, is not read.
    """
    found: dict[Path, DumpFile] = {}
    for path in given:
        if path == STDIN:
            found[path] = DumpFile(path, "", named=True)
        elif path.is_dir():
            inside = [file for file in path.rglob("*") if file.name.lower().endswith(SUFFIXES) and not file.is_dir()]
            if without is not None and path.resolve() in without.parents:
                inside = [file for file in inside if without not in file.resolve().parents]
            if not inside:
                raise ConfigError("FILES", str(path), f"has no dump in it ({', '.join(SUFFIXES)}). Name another.")
            for file in inside:
                found.setdefault(file, DumpFile(file, str(file.relative_to(path)), named=False))
        elif not path.exists():
            raise ConfigError("FILES", str(path), "does not exist. Name dumps of rollouts, or their folder.")
        elif not path.name.lower().endswith(SUFFIXES) and not stat.S_ISFIFO(path.stat().st_mode):
            raise ConfigError("FILES", str(path), f"must end in {', '.join(SUFFIXES)}. Name a dump of rollouts.")
        else:
            found[path] = DumpFile(path, path.name, named=True)
    once = {file.path.resolve(): file for file in sorted(found.values(), key=lambda file: not file.path.is_symlink())}
    return sorted(once.values(), key=lambda file: file.order)  # of a file and links to it, the file


def second_copies(files: Sequence[DumpFile]) -> list[DumpFile]:
    """The files whose rollouts another one has too.

    prime-rl writes what a step trained on again (``effective`` beside ``all``), and packs a file that is complete.
    """
    paths = {file.path for file in files if file.path != STDIN and file.path.exists() and file.path.stat().st_size}

    def first(path: Path) -> Path:
        is_trace = path.name.startswith("traces.jsonl")
        every = Path(*("all" if is_trace and part == "effective" else part for part in path.parts))
        return path.with_suffix("") if path.suffix in (".zst", ".gz") and path.with_suffix("") in paths else every

    return [file for file in files if first(file.path) != file.path and first(file.path) in paths]


def why(error: BaseException) -> str:
    """What is wrong with a file, in a line."""
    text = str(error).splitlines() or [""]
    return f"{type(error.__cause__ or error).__name__}: {text[0]}"


def _rows_of_lines(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines_of(file, path), 1):
        if line.strip():
            yield f"{path}, line {number}", _parsed(line.decode("utf-8-sig", errors="replace"))


def _parsed(line: str | bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return None


def _rows_of_gzip(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    with gzip.open(file) as lines:
        yield from _rows_of_lines(path, _Bounded(path, file, lines))  # type: ignore[arg-type]


def _rows_of_zstd(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    from pyarrow import CompressedInputStream

    with CompressedInputStream(file, "zstd") as lines:
        yield from _rows_of_lines(path, _Bounded(path, file, lines))  # type: ignore[arg-type]


class _Bounded(io.BufferedReader):
    """Unpacked lines, as far as they do not take too many times as much as the packed ones."""

    def __init__(self, path: Path, packed: BinaryIO, unpacked: Any) -> None:
        super().__init__(unpacked, 1 << 16)
        self._path, self._packed, self._read = path, os.fstat(packed.fileno()).st_size, 0

    def readline(self, size: int | None = -1) -> bytes:
        """Read a line. Raises UnusableFileError."""
        line = super().readline(size)
        self._read += len(line)
        require_unpacked(self._path, self._packed, self._read)
        return line


def _rows_of_parquet(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number, row in enumerate(rows_of_parquet(path, file), 1):
        yield f"{path}, row {number}", row


def _rows_of_torch(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number, sample in enumerate(samples_of(path, file), 1):
        yield f"{path}, sample {number}", sample


def _rows_of_json(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Lines, a list of objects, or a single indented object, which may be a log of Inspect's."""
    while (line := file.readline(MOST_TEXT)) and not line.strip():
        pass
    start = line.removeprefix(b"\xef\xbb\xbf").strip()
    file.seek(0)
    if start != b"{" and not start.startswith(b"["):
        yield from _rows_of_lines(path, file)
        return
    whole = parse_json(read_rest(file, path, MOST_TEXT).decode("utf-8-sig", errors="replace"))
    if isinstance(whole, dict) and isinstance(whole.get("samples"), list) and "eval" in whole:
        whole = [_inspect_row(sample, whole) for sample in whole["samples"]]
    for number, row in enumerate(whole if isinstance(whole, list) else [whole], 1):
        yield f"{path}, sample {number}", row


def _rows_of_inspect(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Inspect's archive: a JSON file per sample; nothing in it is written to disk."""
    packed, unpacked = os.fstat(file.fileno()).st_size, 0
    with ZipFile(file) as archive:
        names = dict.fromkeys(archive.namelist())  # of files with the same name, the last counts
        start = "header.json" if "header.json" in names else "_journal/start.json"  # the latter while it runs
        log = parse_json(_content(path, archive, start))
        for name in filter(_INSPECT_SAMPLE.fullmatch, names):
            content = _content(path, archive, name)
            unpacked += len(content)
            require_unpacked(path, packed, unpacked)
            yield f"{path}, {name}", _inspect_row(_parsed(content), log)


def _inspect_row(sample: Any, log: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": log["eval"]["model"], INSPECT_SAMPLE: sample}


def _content(path: Path, archive: ZipFile, name: str) -> bytes:
    """The content of a file in the archive. What zstd compressed, zipfile reads only from Python 3.14 on.

    Raises UnusableFileError for more than `MOST_TEXT`, which no archive's own number hides.
    """
    info = copy(archive.getinfo(name))
    require_size(path, info.file_size, MOST_TEXT, f"{name} has")
    if info.compress_type != _ZSTD:
        return archive.read(info)
    from pyarrow import CompressedInputStream

    info_size = info.file_size
    # To zipfile, the compressed bytes are the content; the checksum is of the decompressed ones.
    info.compress_type, info.file_size, info.CRC = ZIP_STORED, info.compress_size, None  # type: ignore[assignment]
    with archive.open(info) as stored, CompressedInputStream(stored, "zstd") as content:
        found = bytes(content.read(info_size + 1))
    if len(found) > info_size:
        raise BadZipFile(f"{name} is longer than the archive says")
    return found
