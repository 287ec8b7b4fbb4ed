"""A run's log of rollouts as the scripts read it: step by step, as one table, or a few rollouts of it.

Texts are the bulk of a log, so everything here takes only the columns that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.rollout_log import read_rollouts, read_step

KEYS = ("step", "sample", "prompt", "correct")  # are always read


def logged_steps(run: Path, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """The rollouts of each step of a run's log, in the order of their samples: `KEYS` and ``columns``.

    Raises ConfigError where the run is not there or has no log, or a file of it cannot be read.
    """
    if not run.is_dir():
        raise ConfigError("RUN", str(run), "does not exist; name a run's folder")
    steps = 0
    for table in read_rollouts(RunPaths(run), tuple(dict.fromkeys((*KEYS, *columns)))):
        if len(table):
            steps += 1
            yield _in_order(table)
    if not steps:
        raise ConfigError("RUN", str(run), "has no log of rollouts; train with --meds.tracking.rollouts all")


def logged_rollouts(run: Path, columns: Sequence[str] = ()) -> pa.Table:
    """All rollouts of a run's log as one table, in the order of (step, sample). Raises as `logged_steps` does."""
    return joined(list(logged_steps(run, columns)))


def joined(steps: Sequence[pa.Table]) -> pa.Table:
    """The steps' tables as one, a chunk each: 2 GiB of text are the most that one chunk can hold."""
    return pa.concat_tables(steps).unify_dictionaries()


def texts_of(run: Path, rows: pa.Table) -> list[tuple[str, str]]:
    """Prompt and response (k,) of ``rows``, which have step and sample and are of steps with all their texts.

    Raises ConfigError where a step's file has gone since.
    """
    steps, samples = (rows[name].to_numpy() for name in ("step", "sample"))
    found: dict[int, tuple[str, str]] = {}
    for step in np.unique(steps).tolist():
        table = read_step(RunPaths(run), step, ("sample", "prompt_text", "response"))
        if table is None:
            raise ConfigError("RUN", str(run), f"has lost step {step} of its log meanwhile; run the script again")
        own, table = np.flatnonzero(steps == step), _in_order(table)
        taken = table.take(pa.array(np.searchsorted(table["sample"].to_numpy(), samples[own])))
        found.update(zip(own.tolist(), zip(taken["prompt_text"].to_pylist(), taken["response"].to_pylist())))
    return [found[row] for row in range(len(rows))]


def prompt_codes(rows: pa.Table) -> NDArray[np.int64]:
    """A number (n,) for each row's prompt, from 0 up in the order of their first rows."""
    chunks = rows["prompt"].dictionary_encode().unify_dictionaries().chunks
    codes = [np.empty(0, np.int64), *(chunk.indices.to_numpy().astype(np.int64) for chunk in chunks)]
    return np.concatenate(codes)


def _in_order(table: pa.Table) -> pa.Table:
    """One step's rollouts by sample; they mostly are, and sorting would copy all texts."""
    return table if (np.diff(table["sample"].to_numpy()) > 0).all() else table.sort_by("sample")
