"""Names for several runs in the same table, figure or page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError


def names_of(runs: Sequence[Path]) -> list[str]:
    """A short unique name for each folder. Raises ConfigError if a run is given twice."""
    plain = [run.resolve().name for run in runs]
    if len(set(plain)) == len(plain):
        return plain
    longer = [f"{run.resolve().parent.name}/{run.resolve().name}" for run in runs]
    if len(set(longer)) == len(longer):
        return longer
    full = [str(run.resolve()) for run in runs]
    if len(set(full)) != len(full):
        repeated = next(name for name in full if full.count(name) > 1)
        raise ConfigError("RUN", repeated, "is named twice. Name each run once.")
    return full
