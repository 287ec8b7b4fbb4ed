"""The metrics of a training step, and logs with a JSON line per step, for summaries, reports and dashboards."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import append_whole, cut_torn_line, lines_of, open_file, open_own, write_atomically
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.paths import MOST_STEPS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from meds_openrlhf.memory.shard import MemoryAnswer

# Nats per token between engine and policy: different kernels cause about 0.001, weights of one step ago over 0.1.
LARGEST_VLLM_KL = 0.02


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


def step_metrics(
    answer: MemoryAnswer,
    raw: NDArray[np.floating],
    shaped: NDArray[np.floating],
    correct: NDArray[np.bool_],
    effect: float,
    recording_seconds: float,
) -> dict[str, float]:
    """Metrics of a step by their public names, for OpenRLHF's status dictionary; docs/metrics.md explains each.

    ``raw`` and ``shaped`` are the rewards (n,) of the step's rollouts, ``correct`` (n,) the verdicts, ``effect`` the
    memory's share of the variance within groups (`penalty_effect`).
    """
    stats = answer.stats
    taken = raw - shaped
    return {
        "meds/reward_raw": float(raw.mean()),
        "meds/reward_shaped": float(shaped.mean()),
        "meds/accuracy": float(correct.mean()),
        "meds/penalty_mean": float(taken.mean()),
        "meds/penalized_share": float((taken > 0).mean()),
        "meds/penalty_effect": effect,
        "meds/penalty_amplitude": math.sqrt(effect),
        "meds/rows_step": float(len(answer.sample)),
        "meds/rows": float(stats.rows),
        "meds/prompts": float(stats.prompts),
        "meds/clusters": float(stats.clusters),
        "meds/noise_share": stats.noise / stats.rows if stats.rows else 0.0,
        "meds/bytes": float(stats.bytes),
        "meds/coverage": stats.solved / stats.visited if stats.visited else 0.0,
        "meds/time_recording_ms": recording_seconds * 1e3,
        **{f"meds/time_{part}_ms": seconds * 1e3 for part, seconds in answer.seconds.items()},
    }
