"""Read dumps line by line, count what is left out and why, and yield the rollouts step by step."""

from __future__ import annotations

import os
import pickle
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from meds_openrlhf.arrow_files import rows_of_parquet
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.formats import INSPECT_SAMPLE, Format, LeftOut, Rollout, recognise
from meds_openrlhf.files import (
    MOST_TEXT,
    UnusableFileError,
    lines_of,
    open_file,
    read_rest,
    require_size,
    require_unpacked,
)
from meds_openrlhf.json_text import parse_json

SUFFIXES = (".jsonl", ".json", ".parquet", ".pt", ".eval")
PORTION = 4_096  # lines that count as a step where a dump does not say its steps
_MODEL = ("model", "model_name", "model_name_or_path")
_STEP = re.compile(r"step[_-]?([0-9]{1,9})$")
_NUMBER = re.compile(r"[0-9]{1,9}")
_BESIDE = re.compile(r"eval|results_.*\.json$")  # beside dumps: prime-rl's evaluations, lm-eval's results
_INSPECT_SAMPLE = re.compile(r"samples/.*_epoch_\d+\.json")
_ZSTD = 93  # in a zip
_UNREADABLE = (
    OSError, ValueError, TypeError, LookupError, RuntimeError, EOFError, pickle.UnpicklingError, BadZipFile, zlib.error,
    AttributeError, MemoryError, OverflowError, struct.error,
)  # fmt: skip


@dataclass
class Counts:
    """What was read; ``left_out`` counts lines by reason, and ``examples`` has the first place of each."""

    files: int = 0
    rollouts: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def leave_out(self, reason: str, place: str, lines: int = 1) -> None:
        """Count lines that are not rollouts."""
        self.left_out[reason] += lines
        self.examples.setdefault(reason, place)


class Dump:
    """The dumps of a run: ``files``, and every dump in them that are folders.

    ``columns`` replaces names of columns by their role; its ``filter`` is the filter of lm-eval whose lines count, by
    default each file's first. A folder ``without`` inside the given ones, such as an earlier atlas, is not read.

    Iterating yields (step, rollouts), steps in ascending order; `counts` and `format_name` are complete after it. If
    steps are counted from 0 they are numbered from 1. Raises ConfigError for files that cannot be read or whose steps
    are out of order.
    """

    def __init__(
        self,
        files: Sequence[Path],
        format_name: str = "auto",
        columns: Mapping[str, str] | None = None,
        without: Path | None = None,
    ):
        self._named = set(files)
        self._files = sorted(_found(files, without and without.resolve()), key=_in_order)
        self._wanted = format_name
        self._columns = dict(columns or {})
        self._wanted_filter = self._columns.pop("filter", None)
        self._filter: str | None = None
        self._format: Format | None = None
        self._model: str | None = None
        self._shift: int | None = None
        self.format_name = format_name
        self.counts = Counts()

    def __iter__(self) -> Iterator[tuple[int, list[Rollout]]]:
        last, where = 0, ""
        before: list[tuple[str, str, float]] = []
        for (step, folder), placed in groupby(self._placed(), key=lambda place: place[:2]):
            if self._shift is None:
                self._shift = int(step == 0)
            number = step + self._shift
            if number <= last:
                hint = f"has step {step} after step {last - self._shift} of {where}. Sort the lines by step."
                if number == last:
                    hint = f"has step {step}, which {where} also has. If these are two runs, make an atlas of each, "
                    hint += "and `meds report` of both."
                raise ConfigError("FILES", folder, hint)
            last, where = number, folder
            rollouts = [rollout for *_, rollout in placed]
            content = [(rollout.prompt, rollout.response, rollout.reward) for rollout in rollouts]
            if self.format_name == "trl" and content == before:  # it logs a generation at every update that uses it
                self.counts.rollouts -= len(rollouts)
                self.counts.leave_out("of a repeated step", f"{folder}, step {step}", len(rollouts))
                continue
            before = content
            yield number, rollouts

    def _placed(self) -> Iterator[tuple[int, str, Rollout]]:
        """Every rollout with its step and its folder, where several processes may have written that step."""
        portion = 0
        for path in self._files:
            of_file = _step_of(path)
            for line, rollout in enumerate(self._rollouts(path)):
                step = rollout.step if rollout.step is not None else of_file
                if step is None:
                    portion += line % PORTION == 0
                    step = portion
                yield step, str(path.parent), rollout

    def _rollouts(self, path: Path) -> Iterator[Rollout]:
        self.counts.files += 1
        self._filter = self._wanted_filter
        for place, row in _rows(path, named=path in self._named):
            try:
                rollout = self._rollout(row, path)
            except LeftOut as reason:
                self.counts.leave_out(str(reason), place)
                continue
            self.counts.rollouts += 1
            yield rollout

    def _rollout(self, row: Any, path: Path) -> Rollout:
        if not isinstance(row, dict):
            raise LeftOut("without a JSON object")
        if "filtered_resps" in row:  # lm-eval repeats a sample for each filter
            self._filter = self._filter or row.get("filter")
            if row.get("filter") != self._filter:
                raise LeftOut(f"of the filter {row.get('filter')}, not of {self._filter}")
        if self._format is None:
            self.format_name, self._format = recognise(self._wanted, self._columns, row, str(path))
        model = next((row[name] for name in _MODEL if isinstance(row.get(name), str)), None)
        self._model = self._model or model
        if model not in (None, self._model):
            raise LeftOut(f"of the model {model}, not of {self._model}")
        return self._format.rollout(row)


def _found(files: Sequence[Path], without: Path | None) -> list[Path]:
    """The files, and those of the folders that may be dumps of training. Raises ConfigError if there is none."""
    found: list[Path] = []
    for given in files:
        if given.is_dir():
            inside = [path for path in given.rglob("*") if path.suffix in SUFFIXES and not _BESIDE.match(path.name)]
            if without is not None and given.resolve() in without.parents:
                inside = [path for path in inside if without not in path.resolve().parents]
            if not inside:
                raise ConfigError("FILES", str(given), f"has no dump in it ({', '.join(SUFFIXES)}). Name another.")
            found += inside
        elif not given.exists():
            raise ConfigError("FILES", str(given), "does not exist. Name dumps of rollouts, or their folder.")
        elif given.suffix not in SUFFIXES:
            raise ConfigError("FILES", str(given), f"must end in {', '.join(SUFFIXES)}. Name a dump of rollouts.")
        else:
            found.append(given)
    return list(dict.fromkeys(found))


def _in_order(path: Path) -> tuple[int, list[Any]]:
    """By step, then by name, with numbers in it by value."""
    step = _step_of(path)
    return (-1 if step is None else step), [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", str(path))]


def _step_of(path: Path) -> int | None:
    """The step that the path names: ``12.jsonl``, ``train_data_step12.jsonl``, ``step_12/train_rollouts.jsonl``."""
    if _NUMBER.fullmatch(path.stem):
        return int(path.stem)
    found = _STEP.search(path.stem) or _STEP.search(path.parent.name)
    return int(found[1]) if found else None


def _rows(path: Path, named: bool) -> Iterator[tuple[str, Any]]:
    """Each line with its place; ``named``: by the user. Raises ConfigError for a file that cannot be read at all."""
    readers = {".parquet": _rows_of_parquet, ".pt": _rows_of_torch, ".eval": _rows_of_inspect, ".json": _rows_of_json}
    rows = readers.get(path.suffix, _rows_of_lines)
    try:
        with open_file(path, named_by_user=named) as file:
            yield from rows(path, file)
    except (ConfigError, UnusableFileError):
        raise
    except _UNREADABLE as error:
        reason = f"{type(error.__cause__ or error).__name__}: {error}".splitlines()[0]
        raise ConfigError("FILES", str(path), f"cannot be read ({reason}). Leave it out.") from error


def _rows_of_lines(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines_of(file, path), 1):
        if line.strip():
            yield f"{path}, line {number}", _parsed(line.decode(errors="replace"))


def _parsed(line: str | bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return None


def _rows_of_parquet(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number, row in enumerate(rows_of_parquet(path, file), 1):
        yield f"{path}, row {number}", row


def _rows_of_torch(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """slime's: a dict of plain values; nothing in the file is executed."""
    import torch

    with ZipFile(file) as archive:
        sizes = [info.file_size for info in archive.infolist()]
    require_unpacked(path, os.fstat(file.fileno()).st_size, sum(sizes))
    file.seek(0)
    content = torch.load(file, map_location="cpu", weights_only=True)
    for number, sample in enumerate(content["samples"], 1):
        yield f"{path}, sample {number}", {**sample, "rollout_id": content.get("rollout_id")}


def _rows_of_json(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Lines, or a single indented object: a log of Inspect's."""
    is_object = file.readline(MOST_TEXT).strip() == b"{"
    file.seek(0)
    if not is_object:
        yield from _rows_of_lines(path, file)
        return
    log = parse_json(read_rest(file, path, MOST_TEXT).decode(errors="replace"))
    if not isinstance(log.get("samples"), list):
        yield str(path), None
        return
    for number, sample in enumerate(log["samples"], 1):
        yield f"{path}, sample {number}", _inspect_row(sample, log)


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
