"""Read a run's log of rollouts: step by step, as a single table, or only a few rollouts.

Texts are the bulk of a log, so all functions read only the requested columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.rollout_log import read_rollouts, read_step

KEYS = ("step", "sample", "prompt", "correct")  # always read
TEXTS = ("prompt_text", "response", "ground_truth")


def logged_steps(run: Path, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """Yield the rollouts of each step of a run's log, in the order of samples, with `KEYS` and ``columns``.

    Raises ConfigError if the run does not exist or has no log, or if a file of the log cannot be read.
    """
    if not run.is_dir():
        raise ConfigError("RUN", str(run), "does not exist. Name the folder of a run.")
    steps = 0
    for table in read_rollouts(RunPaths(run), tuple(dict.fromkeys((*KEYS, *columns)))):
        if len(table):
            steps += 1
            yield _in_order(table)
    if not steps:
        raise ConfigError("RUN", str(run), "has no log of rollouts. Train with --meds.tracking.rollouts all.")


def logged_rollouts(run: Path, columns: Sequence[str] = ()) -> pa.Table:
    """All rollouts of a run's log as a table, in the order of (step, sample). Raises like `logged_steps`."""
    return joined(list(logged_steps(run, columns)))


def joined(steps: Sequence[pa.Table]) -> pa.Table:
    """Concatenate the steps' tables, with a chunk per step because a chunk holds at most 2 GiB of text."""
    return pa.concat_tables(steps).unify_dictionaries()


@dataclass(frozen=True)
class Exchange:
    """A prompt, a response to it, and its ground truth; None if the data set has none."""

    prompt: str
    response: str
    ground_truth: str | None


def texts_of(run: Path, rows: pa.Table) -> list[Exchange]:
    """The texts of each of ``rows`` (k), which need step and sample and must have texts in the log.

    Raises ConfigError if the file of a step has been removed.
    """
    steps, samples = (rows[name].to_numpy() for name in ("step", "sample"))
    found: dict[int, Exchange] = {}
    for step in np.unique(steps).tolist():
        table = read_step(RunPaths(run), step, ("sample", *TEXTS))
        if table is None:
            raise ConfigError("RUN", str(run), f"has just lost step {step} of its log. Run the script again.")
        places, table = np.flatnonzero(steps == step), _in_order(table)
        taken = table.take(pa.array(np.searchsorted(table["sample"].to_numpy(), samples[places])))
        found.update(zip(places.tolist(), map(Exchange, *(taken[name].to_pylist() for name in TEXTS))))
    return [found[row] for row in range(len(rows))]


def prompt_codes(rows: pa.Table) -> NDArray[np.int64]:
    """Encode each row's prompt as a number (n,) from 0, in the order of first occurrence."""
    chunks = rows["prompt"].dictionary_encode().unify_dictionaries().chunks
    codes = [np.empty(0, np.int64), *(chunk.indices.to_numpy().astype(np.int64) for chunk in chunks)]
    return np.concatenate(codes)


def _in_order(table: pa.Table) -> pa.Table:
    """Sort a step's rollouts by sample, unless they are sorted already, because sorting copies all texts."""
    return table if (np.diff(table["sample"].to_numpy()) > 0).all() else table.sort_by("sample")
