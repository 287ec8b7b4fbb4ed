"""Logs with a JSON line per step, for summaries, reports and dashboards."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from meds_openrlhf.files import append_whole, cut_torn_line, write_atomically
from meds_openrlhf.json_text import parse_json


class StepLog:
    """A file such as ``metrics.jsonl`` with steps in order; a resumed run removes the steps that it will repeat."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        """Read all complete lines; a partial line of a killed process is skipped."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            return list(whole_lines(file))

    def cut_after(self, step: int) -> None:
        """Remove the steps after ``step``."""
        if not self._path.exists():
            return
        kept = [json.dumps(line) for line in self.read() if line["step"] <= step]
        write_atomically(self._path, "".join(f"{line}\n" for line in kept))

    def append(self, step: int, content: Mapping[str, Any]) -> None:
        """Append a step durably and atomically; the partial line of a killed process is removed.

        Raises OSError, with the log unchanged, if the line cannot be written.
        """
        with self._path.open("ab") as file:
            cut_torn_line(self._path)
            append_whole(file.fileno(), (json.dumps({"step": step, **content}) + "\n").encode())


def whole_lines(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Read the complete lines from the file's position on; a line that is still being written is left there."""
    while (line := file.readline()).endswith(b"\n"):
        yield parse_json(line)
    file.seek(-len(line), os.SEEK_CUR)
