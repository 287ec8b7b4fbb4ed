"""A run's rollout log: as tables, as flat arrays, and the texts of a few rollouts.

Texts are the bulk of a log, so all functions read only the columns that they need. Files have the order of samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meds_openrlhf.columns import IDENTITY, ROLLOUT_SCHEMA
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import read_rollouts, read_step
from meds_openrlhf.rollouts.texts import ResponseText

NONE = -1  # of a code or an index: there is none, as for pandas
TEXTS = ("prompt_text", "response", "ground_truth")  # the last is null if the data set has none

RolloutIds = tuple[NDArray[np.integer], NDArray[np.integer]]  # the step and the sample (n,) of each


def places_among(logged: RolloutIds, wanted: RolloutIds) -> NDArray[np.int64]:
    """The join of log, memory and clusters: the index (m,) of each ``wanted`` rollout among those logged, or NONE."""
    logged_key, wanted_key = ((step.astype(np.int64) << 32) + sample for step, sample in (logged, wanted))
    places: NDArray[np.int64] = pd.Index(logged_key).get_indexer(wanted_key)
    return places


def codes_of(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str]]:
    """Number the distinct values in the order of first occurrence: codes (n,), NONE for null, and the values."""
    encoded = column.dictionary_encode().combine_chunks()
    codes = pc.fill_null(encoded.indices, NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, encoded.dictionary.to_pylist()


def prompt_codes(rows: pa.Table) -> NDArray[np.int64]:
    """Encode each row's prompt as a number (n,) from 0, in the order of first occurrence."""
    return codes_of(rows["prompt"])[0]


def logged_steps(run: Path, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """Yield the rollouts of each step of a run's log, in the order of samples, with `IDENTITY` and ``columns``.

    Raises ConfigError if the run does not exist or has no log, or if a file of the log cannot be read.
    """
    if not run.is_dir():
        raise ConfigError("RUN", str(run), "does not exist. Name the folder of a run.")
    steps = 0
    for table in read_rollouts(RunPaths(run), tuple(dict.fromkeys((*IDENTITY, *columns)))):
        if len(table):
            steps += 1
            yield table
    if not steps:
        raise ConfigError("RUN", str(run), "has no rollout log. Train with --meds.tracking.rollouts all.")


def logged_rollouts(run: Path, columns: Sequence[str] = ()) -> pa.Table:
    """All rollouts of a run's log in the order of (step, sample), with a chunk per step: a chunk holds 2 GiB of text.

    Raises like `logged_steps`.
    """
    return pa.concat_tables(logged_steps(run, columns)).unify_dictionaries()


def _texts_at(
    paths: RunPaths, step: NDArray[np.int64], sample: NDArray[np.int64], columns: Sequence[str]
) -> dict[int, tuple[Any, ...]]:
    """The ``columns`` of the rollouts at ``step`` and ``sample`` (k,), by index, except where a step has no file."""
    found: dict[int, tuple[Any, ...]] = {}
    for number in np.unique(step).tolist():
        table = read_step(paths, number, ("sample", *columns))
        if table is not None:
            places = np.flatnonzero(step == number)
            at = pc.index_in(pa.array(sample[places], pa.int32()), table["sample"])
            taken = table.take(at)  # null where the log has no such sample
            found.update(zip(places.tolist(), zip(*(taken[name].to_pylist() for name in columns))))
    return found


def texts_of(run: Path, rows: pa.Table) -> list[dict[str, Any]]:
    """`TEXTS` by name of each of ``rows`` (k), which need step and sample and must have texts in the log."""
    found = _texts_at(RunPaths(run), rows["step"].to_numpy(), rows["sample"].to_numpy(), TEXTS)
    return [dict(zip(TEXTS, found[row])) for row in range(len(rows))]


@dataclass(frozen=True)
class RolloutLog:
    """The n logged rollouts, by step and sample; ``prompt`` and ``answer`` are indices into their lists of texts."""

    paths: RunPaths
    step: NDArray[np.int64]  # (n,)
    sample: NDArray[np.int64]  # (n,)
    prompt: NDArray[np.int64]  # (n,)
    answer: NDArray[np.int64]  # (n,), NONE without an answer
    correct: NDArray[np.bool_]  # (n,)
    penalty: NDArray[np.float32]  # (n,), subtracted from the reward
    truncated: NDArray[np.bool_]  # (n,)
    has_text: NDArray[np.bool_]  # (n,)
    prompts: list[str]  # keys
    answers: list[str]
    prompt_texts: dict[str, str]  # by key, as sent to the engines
    truths: dict[str, str | None]  # by key

    def __len__(self) -> int:
        return len(self.step)

    def find(self, step: NDArray[np.int64], sample: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices (m,) of rollouts, NONE for those that are not in the log."""
        return places_among((self.step, self.sample), (step, sample))

    def responses(self, places: Iterable[int]) -> dict[int, ResponseText]:
        """Read the responses of the rollouts at ``places``, by place; those without a text are left out."""
        wanted = np.unique(np.fromiter(places, np.int64))
        columns = ("response", "answer", "answer_start")
        found = _texts_at(self.paths, self.step[wanted], self.sample[wanted], columns)
        return {int(wanted[i]): ResponseText(*row) for i, row in found.items() if row[0] is not None}


def read_log(paths: RunPaths) -> RolloutLog:
    """Read the log without the texts; without a log it is empty. Raises ConfigError if a file cannot be read."""
    columns = ("step", "sample", "prompt", "answer", "correct", "penalty", "truncated")
    tables = [ROLLOUT_SCHEMA.empty_table().select(columns).append_column("has_text", pa.array([], pa.bool_()))]
    texts: dict[str, str] = {}
    truths: dict[str, str | None] = {}
    for table in read_rollouts(paths, (*columns, "prompt_text", "ground_truth", "response")):
        first = np.unique(codes_of(table["prompt"])[0], return_index=True)[1]
        for row in table.select(("prompt", "prompt_text", "ground_truth")).take(pa.array(first)).to_pylist():
            texts.setdefault(row["prompt"], row["prompt_text"])
            truths.setdefault(row["prompt"], row["ground_truth"])
        tables.append(table.select(columns).append_column("has_text", table["response"].is_valid()))
    table = pa.concat_tables(tables)
    step, sample = (table[name].to_numpy().astype(np.int64) for name in ("step", "sample"))
    (prompt, prompts), (answer, answers) = codes_of(table["prompt"]), codes_of(table["answer"])
    correct, penalty, truncated, has_text = (
        table[name].to_numpy() for name in ("correct", "penalty", "truncated", "has_text")
    )
    rows = step, sample, prompt, answer, correct, penalty, truncated, has_text
    return RolloutLog(paths, *rows, prompts, answers, texts, truths)
