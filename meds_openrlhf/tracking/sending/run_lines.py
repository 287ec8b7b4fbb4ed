"""Read the lines that a run has written so far, for the processes that send them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from meds_openrlhf.paths import RunPaths

STREAMS = ("metrics", "evaluations", "clusters")


@dataclass(frozen=True)
class RunLine:
    """A line of a stream: its training step and its other values."""

    step: int
    values: dict[str, Any]


@dataclass
class _Reading:
    """An open file and the read position. An open file keeps its inode, so a replacement has another inode."""

    file: BinaryIO
    index: int = 0  # the number of the next line
    offset: int = 0  # byte position of that line

    def is_of(self, path: Path) -> bool:
        """Whether ``path`` is still this file."""
        there, held = path.stat(), os.fstat(self.file.fileno())
        return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)


class RunLines:
    """The lines of a run's streams by their number, from 0. Only complete lines count."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._readings: dict[str, _Reading] = {}

    def read(self, stream: str, first: int, limit: int | None = None) -> list[RunLine]:
        """Read at most ``limit`` lines from number ``first`` on; empty if the file does not exist."""
        try:
            reading = self._reading(stream, first)
        except FileNotFoundError:
            return []
        reading.file.seek(reading.offset)
        lines: list[RunLine] = []
        while limit is None or len(lines) < limit:
            text = reading.file.readline()
            if not text.endswith(b"\n"):
                break
            if reading.index >= first:
                lines.append(_parse(text))
            reading.index += 1
            reading.offset += len(text)
        return lines

    def _reading(self, stream: str, first: int) -> _Reading:
        path, reading = self.file(stream), self._readings.get(stream)
        if reading is not None and reading.is_of(path):
            if reading.index > first:
                reading.index = reading.offset = 0
            return reading
        if reading is not None:
            reading.file.close()
            del self._readings[stream]
        self._readings[stream] = _Reading(path.open("rb"))
        return self._readings[stream]

    def count_up_to(self, stream: str, step: int) -> int:
        """The number of lines before the first line of a step after ``step``."""
        lines = self.read(stream, 0)
        return next((index for index, line in enumerate(lines) if line.step > step), len(lines))

    def file(self, stream: str) -> Path:
        """The file of a stream."""
        files = {
            "metrics": self._paths.metrics,
            "evaluations": self._paths.evaluations,
            "clusters": self._paths.clusters,
        }
        return files[stream]


def _parse(text: bytes) -> RunLine:
    values = json.loads(text)
    return RunLine(int(values.pop("step")), values)


def numbers(line: RunLine) -> dict[str, float]:
    """The numbers of a line by name, including NaN and infinities, which the user needs to see."""
    return {name: value for name, value in line.values.items() if isinstance(value, (int, float))}
