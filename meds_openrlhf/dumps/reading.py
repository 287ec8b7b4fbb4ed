"""Read dumps line by line, count what is left out and why, and yield the rollouts step by step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.formats import Format, LeftOut, Rollout, recognise
from meds_openrlhf.json_text import parse_json

SUFFIXES = (".jsonl", ".json", ".parquet", ".pt")
PORTION = 4_096  # lines that count as a step where a dump does not say its steps
_MODEL = ("model", "model_name", "model_name_or_path")
_STEP = re.compile(r"step[_-]?(\d+)$")


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

    Iterating yields (step, rollouts), steps in ascending order; `counts` and `format_name` are complete after it. If
    steps are counted from 0 they are numbered from 1. Raises ConfigError for files that cannot be read or whose steps
    are out of order.
    """

    def __init__(self, files: Sequence[Path], format_name: str = "auto", columns: Mapping[str, str] | None = None):
        self._files = sorted(_found(files), key=_in_order)
        self._wanted = format_name
        self._columns = columns or {}
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
                    hint = f"has step {step}, as {where} does. Make an atlas of each run, and `meds report` of both."
                raise ConfigError("FILES", folder, hint)
            last, where = number, folder
            rollouts = [rollout for *_, rollout in placed]
            content = [(rollout.prompt, rollout.response, rollout.reward) for rollout in rollouts]
            if self.format_name == "trl" and content == before:  # it logs a generation at every update that uses it
                self.counts.rollouts -= len(rollouts)
                self.counts.leave_out("that repeat the step before", f"{folder}, step {step}", len(rollouts))
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
        for place, row in _rows(path):
            try:
                if isinstance(row, LeftOut):
                    raise row
                if self._format is None:
                    self.format_name, self._format = recognise(self._wanted, self._columns, row, str(path))
                self._require_one_model(row)
                rollout = self._format.rollout(row)
            except LeftOut as reason:
                self.counts.leave_out(str(reason), place)
                continue
            self.counts.rollouts += 1
            yield rollout

    def _require_one_model(self, row: Mapping[str, Any]) -> None:
        model = next((row[name] for name in _MODEL if isinstance(row.get(name), str)), None)
        if model is None:
            return
        self._model = self._model or model
        if model != self._model:
            raise LeftOut(f"of the model {model}, not of {self._model}")


def _found(files: Sequence[Path]) -> list[Path]:
    """The files, and those of the folders that may be dumps of training. Raises ConfigError if there is none."""
    found: list[Path] = []
    for given in files:
        if given.is_dir():
            inside = [path for path in given.rglob("*") if path.suffix in SUFFIXES and not path.name.startswith("eval")]
            if not inside:
                raise ConfigError("FILES", str(given), f"has no dump in it ({', '.join(SUFFIXES)}). Name another.")
            found += inside
        elif not given.is_file():
            raise ConfigError("FILES", str(given), "does not exist. Name dumps of rollouts, or their folder.")
        elif given.suffix not in SUFFIXES:
            raise ConfigError("FILES", str(given), f"must end in {', '.join(SUFFIXES)}. Name a dump of rollouts.")
        else:
            found.append(given)
    return list(dict.fromkeys(found))


def _in_order(path: Path) -> tuple[int, list[Any]]:
    """By step, then by name, with numbers in it by value."""
    step = _step_of(path)
    parts = [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path)) if part]
    return (-1 if step is None else step), parts


def _step_of(path: Path) -> int | None:
    """The step that the path names: ``12.jsonl``, ``train_data_step12.jsonl``, ``step_12/train_rollouts.jsonl``."""
    if path.stem.isdigit():
        return int(path.stem)
    found = _STEP.search(path.stem) or _STEP.search(path.parent.name)
    return int(found[1]) if found else None


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any] | LeftOut]]:
    """Each line with its place, or why it cannot be read. Raises ConfigError for a file that cannot be read at all."""
    if path.suffix == ".parquet":
        yield from _rows_of_parquet(path)
    elif path.suffix == ".pt":
        yield from _rows_of_torch(path)
    else:
        yield from _rows_of_lines(path)


def _rows_of_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any] | LeftOut]]:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}, line {number}", _parsed(line)
    except OSError as error:
        raise ConfigError("FILES", str(path), f"cannot be read ({error.strerror}). Leave it out.") from error


def _parsed(line: str) -> Mapping[str, Any] | LeftOut:
    try:
        row = parse_json(line)
    except ValueError:
        return LeftOut("that are not JSON")
    return row if isinstance(row, dict) else LeftOut("that are not JSON objects")


def _rows_of_parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(PORTION) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield f"{path}, row {number}", row
    except (pa.ArrowException, OSError) as error:
        hint = f"cannot be read as Parquet ({' '.join(str(error).split())}). Leave it out."
        raise ConfigError("FILES", str(path), hint) from error


def _rows_of_torch(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """slime's: a dict of plain values; nothing in the file is executed."""
    import pickle

    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        samples, shared = content["samples"], {"rollout_id": content.get("rollout_id")}
    except (pickle.UnpicklingError, OSError, RuntimeError, EOFError, KeyError, TypeError, AttributeError) as error:
        hint = f"is not a dump of slime with only plain values ({type(error).__name__}). Leave it out."
        raise ConfigError("FILES", str(path), hint) from error
    for number, sample in enumerate(samples, 1):
        yield f"{path}, sample {number}", {**sample, **shared}
