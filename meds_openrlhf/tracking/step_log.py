"""The run's metrics on disk: one JSON line per training step, for summaries and reports."""

from __future__ import annotations

import json
import os
from pathlib import Path

from meds_openrlhf.paths import write_atomically


class StepLog:
    """``metrics.jsonl``: every step once, in order; a resumed run cuts what it is going to repeat."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, float]]:
        """All whole lines; one that a killed process left half written is not one of them."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def cut_after(self, step: int) -> None:
        """Forget the steps after ``step``."""
        if not self._path.exists():
            return
        kept = [json.dumps(line) for line in self.read() if line["step"] <= step]
        write_atomically(self._path, "".join(f"{line}\n" for line in kept))

    def append(self, step: int, metrics: dict[str, float]) -> None:
        """Add one step."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
            file.flush()
            os.fsync(file.fileno())
