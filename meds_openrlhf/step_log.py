"""A log with a JSON line per step: metrics, evaluations and clusters of a run are in one each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import append_whole, cut_torn_line, lines_of, open_file, open_own, write_atomically
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.paths import MOST_STEPS

# Nats per token between engine and policy: different kernels cause about 0.001, weights of one step ago over 0.1.
LARGEST_VLLM_KL = 0.02
# Metrics of an evaluation on a data set, the first group.
PASS_AT_K = re.compile(r"eval_(.+)_pass([0-9]{1,9})")
UNANSWERED = re.compile(r"eval_(.+)_unanswered_rate")


def pass_at_k_name(source: str, k: int) -> str:
    """Return the name of an evaluation's pass@k on a data set, which `PASS_AT_K` matches."""
    return f"eval_{source}_pass{k}"


def source_and_k(name: str) -> tuple[str, int] | None:
    """Return what `pass_at_k_name` was given, None for another metric."""
    match = PASS_AT_K.fullmatch(name)
    return (match[1], int(match[2])) if match else None


class StepLog:
    """A file such as ``metrics.jsonl`` with steps in order; a resumed run removes the steps that it will repeat."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        """Read all complete lines; a partial line of a killed process is skipped. Raises like `whole_lines`."""
        if not self._path.exists():
            return []
        with open_file(self._path) as file:
            lines = list(whole_lines(file, self._path))
        for before, line in pairwise(lines):
            if line["step"] < before["step"]:
                hint = f"has step {line['step']} after step {before['step']}. Restore the file from a backup."
                raise ConfigError("RUN", str(self._path), hint)
        return lines

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
        with open_own(self._path) as file:
            cut_torn_line(file.fileno())
            append_whole(file.fileno(), (json.dumps({"step": step, **content}) + "\n").encode())


def whole_lines(file: BinaryIO, path: Path) -> Iterator[dict[str, Any]]:
    """Read the complete lines from the file's position on; a line that is still being written is left there.

    Raises ConfigError, naming the file, for a line that is not a JSON object with a step from 0 on.
    """
    for line in lines_of(file, path):
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            return
        try:
            content = parse_json(line)
        except ValueError as error:
            raise ConfigError("RUN", str(path), f"has a line that is not JSON ({error}). Remove that line.") from error
        step = content.get("step") if isinstance(content, dict) else None
        if type(step) is not int or not 0 <= step < MOST_STEPS:
            raise ConfigError("RUN", str(path), "has a line without a step. Remove that line.")
        yield content
