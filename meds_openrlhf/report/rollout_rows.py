"""The log of rollouts as flat arrays without the texts; the texts of a few rollouts are read separately."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meds_openrlhf.paths import RunPaths
from meds_openrlhf.tracking.rollout_log import read_step

NONE = -1
_NUMBERS = ("step", "sample", "prompt", "prompt_text", "response", "answer", "correct")
_TEXTS = ("sample", "response", "answer", "answer_start")


def place_key(step: NDArray[np.integer], sample: NDArray[np.integer]) -> NDArray[np.int64]:
    """A sort key (n,) for each rollout, by step, then by sample."""
    key: NDArray[np.int64] = (step.astype(np.int64) << 32) + sample.astype(np.int64)
    return key


@dataclass(frozen=True)
class Response:
    """A rollout's response; ``answer_start`` is the position of its answer in ``text``, None if unknown."""

    text: str
    answer: str | None
    answer_start: int | None


@dataclass(frozen=True)
class RolloutRows:
    """The n logged rollouts, by step and sample; ``prompt`` and ``answer`` are indices into their lists of texts."""

    step: NDArray[np.int64]  # (n,)
    sample: NDArray[np.int64]  # (n,)
    prompt: NDArray[np.int64]  # (n,)
    answer: NDArray[np.int64]  # (n,), NONE without an answer
    correct: NDArray[np.bool_]  # (n,)
    has_text: NDArray[np.bool_]  # (n,)
    prompts: list[str] = field(default_factory=list)  # keys
    answers: list[str] = field(default_factory=list)
    prompt_texts: dict[str, str] = field(default_factory=dict)  # by key

    def __len__(self) -> int:
        return len(self.step)

    def find(self, step: NDArray[np.int64], sample: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices (m,) of rollouts, NONE for those that are not in the log."""
        if not len(self):
            return np.full(len(step), NONE)
        keys, wanted = place_key(self.step, self.sample), place_key(step, sample)
        place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        return np.where(keys[place] == wanted, place, NONE)


def read_rollout_rows(paths: RunPaths) -> RolloutRows:
    """Read the log without the texts. Raises ConfigError if a file cannot be read."""
    tables: list[pa.Table] = []
    texts: dict[str, str] = {}
    for step in paths.rollout_steps():
        table = read_step(paths, step, _NUMBERS)
        if table is None or not len(table):
            continue
        _collect_texts(table, texts)
        has_text = table.column("response").is_valid()
        tables.append(table.drop_columns(["prompt_text", "response"]).append_column("has_text", has_text))
    if not tables:
        nothing, never = np.empty(0, np.int64), np.empty(0, bool)
        return RolloutRows(nothing, nothing, nothing, nothing, never, never)
    table = pa.concat_tables(tables)
    step, sample = (table.column(name).to_numpy().astype(np.int64) for name in ("step", "sample"))
    order = np.argsort(place_key(step, sample), kind="stable")
    prompt, prompts = _numbered(table.column("prompt"))
    answer, answers = _numbered(table.column("answer"))
    correct, has_text = (table.column(name).to_numpy().astype(bool) for name in ("correct", "has_text"))
    return RolloutRows(
        step[order], sample[order], prompt[order], answer[order], correct[order], has_text[order],
        prompts, answers, texts,
    )  # fmt: skip


def read_responses(paths: RunPaths, rows: RolloutRows, places: Iterable[int]) -> dict[int, Response]:
    """Read the responses of the rollouts at ``places``, by place; skips rollouts whose file was removed meanwhile."""
    found: dict[int, Response] = {}
    wanted = np.unique(np.fromiter(places, np.int64))
    steps = rows.step[wanted]
    for step in np.unique(steps).tolist():
        table = read_step(paths, step, _TEXTS)
        if table is None:
            continue
        of_step = wanted[steps == step]
        sample = table.column("sample").to_numpy()
        order = np.argsort(sample, kind="stable")
        at = np.searchsorted(sample[order], rows.sample[of_step]).clip(max=len(order) - 1)
        fits = sample[order][at] == rows.sample[of_step]
        taken = table.take(pa.array(order[at[fits]]))
        columns = (taken.column(name).to_pylist() for name in ("response", "answer", "answer_start"))
        for place, text, answer, start in zip(of_step[fits].tolist(), *columns):
            if text is not None:
                found[place] = Response(text, answer, start)
    return found


def _collect_texts(table: pa.Table, texts: dict[str, str]) -> None:
    """Add the texts of new prompts."""
    keys = table.column("prompt").combine_chunks().dictionary_encode()
    _, first = np.unique(keys.indices.to_numpy(), return_index=True)
    column = table.column("prompt_text").take(pa.array(first))
    for key, text in zip(table.column("prompt").take(pa.array(first)).to_pylist(), column.to_pylist()):
        texts.setdefault(key, text)


def _numbered(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str]]:
    """Dictionary-encode a column: indices (n,), NONE for null, and the distinct values."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    numbers = pc.fill_null(encoded.indices, NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers, encoded.dictionary.to_pylist()
