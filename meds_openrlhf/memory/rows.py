"""Arrow schemas for the rows of the memory, as the trainer passes them and as the log stores them, and their shards."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meds_openrlhf.columns import IDENTITY, selected
from meds_openrlhf.memory.sets import UNASSIGNED


@dataclass(frozen=True)
class Sharding:
    """Identifies shard number ``shard`` of ``shards``."""

    shard: int
    shards: int

    def __str__(self) -> str:
        return f"shard {self.shard} of {self.shards}"

    @staticmethod
    def of(schema: pa.Schema) -> Sharding:
        """Read from the schema of a file which shard it belongs to. Raises ValueError if it does not say that."""
        found = schema.metadata or {}
        try:
            sharding = Sharding(int(found[b"shard"]), int(found[b"shards"]))
        except (KeyError, ValueError):
            raise ValueError("it does not say which shard it belongs to") from None
        if not 0 <= sharding.shard < sharding.shards:
            raise ValueError(f"there is no {sharding}")
        return sharding


_INCOMING = ("sample", "prompt", "correct", "layer_logits")


def prompt_key(prompt: str) -> str:
    """Return the 128-bit hash of a prompt's text as 32 hexadecimal digits: its key."""
    return hashlib.blake2b(prompt.encode(), digest_size=16).hexdigest()


def shard_of(key: str, shards: int) -> int:
    """Return the number of the shard of a prompt's key, the same in every process and run."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % shards


def owners_of(rows: pa.RecordBatch, shards: int) -> NDArray[np.int64]:
    """Return the shard (n,) of every row; each prompt is hashed once."""
    keys = rows.column("prompt").dictionary_encode()
    owners = np.array([shard_of(key, shards) for key in keys.dictionary.to_pylist()], dtype=np.int64)
    return owners[keys.indices.to_numpy(zero_copy_only=False)] if len(rows) else owners


def log_schema(layers: int) -> pa.Schema:
    """Return the columns of the log for rows of ``layers`` numbers; docs/storage.md explains them."""
    return selected((*IDENTITY, "label", "cluster_size", "layer_logits"), layers)


NEVER_NULL = [place for place, field in enumerate(log_schema(1)) if not field.nullable]  # of its columns


def incoming_schema(layers: int) -> pa.Schema:
    """Return the columns that a trainer passes: those of the log except the step and the memory's answer."""
    return selected(_INCOMING, layers)


def make_rows(
    sample: Sequence[int] | NDArray[np.integer],
    prompt: Sequence[str],
    correct: Sequence[bool] | NDArray[np.bool_],
    layer_logits: NDArray[np.float32],
) -> pa.RecordBatch:
    """Build the rows of one step for `MemoryShard.observe` or `MemoryPool.observe`.

    ``sample`` are the rollouts' unique indices in the step; ``prompt`` their keys; ``correct`` their verdicts;
    ``layer_logits`` (n, N) float32. Raises ValueError if the logits are not a finite (n, N) matrix or an index repeats.
    """
    if layer_logits.ndim != 2 or len(layer_logits) != len(sample):
        raise ValueError(f"layer_logits: {layer_logits.shape} does not give each of {len(sample)} rows its layers")
    if not np.isfinite(layer_logits).all():
        raise ValueError("layer_logits: holds NaN or infinite values; such a rollout has no feature and no row")
    if len(np.unique(np.asarray(sample))) != len(sample):
        raise ValueError("sample: an index repeats; each rollout of a step has one row at most")
    schema = incoming_schema(layer_logits.shape[1])
    values = pa.array(np.ascontiguousarray(layer_logits, dtype=np.float32).reshape(-1))
    logits = pa.FixedSizeListArray.from_arrays(values, type=schema.field("layer_logits").type)
    return pa.RecordBatch.from_arrays([sample, prompt, correct, logits], schema=schema)


def remembered_rows(correct: NDArray[np.bool_], remember: str) -> NDArray[np.bool_]:
    """Return which rollouts (n,) the memory stores, by verdict: "wrong", "right", "both" or "none"."""
    verdicts = {"wrong": [False], "right": [True], "both": [False, True], "none": []}[remember]
    return np.isin(correct, verdicts)


def layer_logits_of(rows: pa.RecordBatch | pa.Table) -> NDArray[np.float32]:
    """Return the ``layer_logits`` (n, N) of rows that have some."""
    column = rows.column("layer_logits")
    return np.asarray(pc.list_flatten(column), np.float32).reshape(len(rows), column.type.list_size)


def with_answer(step: int, rows: pa.RecordBatch, labels: NDArray[np.int32], sizes: NDArray[np.int32]) -> pa.RecordBatch:
    """Add the step and the memory's answer to incoming rows, for the log; stores UNASSIGNED labels as null."""
    schema = log_schema(rows.schema.field("layer_logits").type.list_size)
    steps, label = np.full(len(rows), step), pa.array(labels, pa.int32(), mask=labels == UNASSIGNED)
    sample, prompt, correct, logits = (rows.column(name) for name in _INCOMING)
    return pa.RecordBatch.from_arrays([steps, sample, prompt, correct, label, sizes, logits], schema=schema)


def logged_answer(batch: pa.RecordBatch) -> list[NDArray[np.int32]]:
    """Return the samples, labels and cluster sizes (n,) of a batch of the log, with null labels as UNASSIGNED."""
    columns = batch.column("sample"), batch.column("label").fill_null(UNASSIGNED), batch.column("cluster_size")
    return [column.to_numpy() for column in columns]


def groups_of(rows: pa.RecordBatch) -> list[tuple[tuple[str, bool], int]]:
    """Return the key (prompt and verdict) and the number of rows of each run of rows with the same key."""
    if not len(rows):
        return []
    code, names = _group_codes(rows)
    first = np.flatnonzero(np.r_[True, code[1:] != code[:-1]])
    counts = np.diff(np.r_[first, len(rows)]).tolist()
    return [((names[number // 2], number % 2 == 1), count) for number, count in zip(code[first].tolist(), counts)]


def _group_codes(rows: pa.RecordBatch) -> tuple[NDArray[np.int64], list[str]]:
    """Return a code (n,) per row, ``2 * place + correct``, and the prompts; ``place`` is the row's prompt's index."""
    keys, correct = rows.column("prompt").dictionary_encode(), rows.column("correct")
    codes = keys.indices.to_numpy().astype(np.int64) * 2 + correct.to_numpy(zero_copy_only=False)
    return codes, keys.dictionary.to_pylist()


def group_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Reorder rows so that those of one prompt and verdict are adjacent: prompts in the order of their first row."""
    order = np.argsort(_group_codes(rows)[0], kind="stable")
    return rows if np.array_equal(order, np.arange(len(rows))) else rows.take(pa.array(order))
