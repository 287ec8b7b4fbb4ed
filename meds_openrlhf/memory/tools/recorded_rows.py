"""Recorded rollouts for a replay, from any Arrow file or from a run's log."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.tools.stored_memory import StoredMemory

COLUMNS = {
    "step": ("an integer", pa.types.is_integer),
    "prompt_key": ("string", lambda _: True),
    "correct": ("bool", pa.types.is_boolean),
    "layer_logits": (
        "fixed_size_list<float32>",
        lambda found: (
            pa.types.is_list(found) | pa.types.is_large_list(found) | pa.types.is_fixed_size_list(found)
            and pa.types.is_floating(found.value_type)
        ),
    ),
}


@dataclass(frozen=True)
class Recording:
    """Rollouts (n) ordered by step: the ``table`` as recorded, and its columns as the memory takes them.

    ``layer_logits`` (m, N) float32 are of the rows ``place`` (m,), which are those that have any.
    """

    table: pa.Table
    step: NDArray[np.int64]  # (n,)
    prompt: list[str]
    correct: NDArray[np.bool_]  # (n,)
    place: NDArray[np.int64]
    layer_logits: NDArray[np.float32]

    def steps(self) -> list[slice]:
        """Return the places in ``place`` of each step that has rows with logits."""
        step = self.step[self.place]
        bounds = [0, *(np.flatnonzero(np.diff(step)) + 1).tolist(), len(step)] if len(step) else []
        return [slice(begin, end) for begin, end in pairwise(bounds)]


def read_recording(path: Path) -> Recording:
    """Read an Arrow IPC file or stream. Raises ConfigError if it is neither or a column does not fit."""
    try:
        source = pa.memory_map(str(path))
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        table = (pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)).read_all()
        table.validate()
    except (pa.ArrowInvalid, OSError) as error:
        _refuse(path, f"cannot be read as Arrow ({_one_line(error)})")
    for name, (wanted, fits) in COLUMNS.items():
        if table.schema.get_field_index(name) < 0:
            _refuse(path, f"has no column {name}, or two; it needs {', '.join(COLUMNS)}")
        if not fits(table.schema.field(name).type):
            _refuse(path, f"has a column {name} of type {table.schema.field(name).type}; it has to be {wanted}")
        if table[name].null_count and name != "layer_logits":
            _refuse(path, f"is null in some rows of its column {name}; only layer_logits may be")
    return _recording(table, path)


def recording_of(memory: StoredMemory) -> Recording:
    """Return all rows of a run's log as a recording, with the columns renamed to those of a stream."""
    table = pa.Table.from_batches([rows for _, rows in memory.rows_by_step()], memory.schema)
    chosen = table.select(["step", "sample", "prompt", "correct", "layer_logits"])
    return _recording(
        chosen.rename_columns(["step", "sample", "prompt_key", "correct", "layer_logits"]), memory.paths.root
    )


def _recording(table: pa.Table, source: Path) -> Recording:
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in table.schema]
    try:
        plain = table.cast(pa.schema(fields)).combine_chunks()
        step = plain["step"].cast(pa.int64()).to_numpy()
        prompt = plain["prompt_key"].cast(pa.string()).to_pylist()
    except pa.ArrowInvalid as error:
        _refuse(source, f"cannot be replayed ({_one_line(error)})")
    back = np.flatnonzero(np.diff(step) < 0)
    if len(back):
        _refuse(source, f"goes from step {step[back[0]]} back to {step[back[0] + 1]}; sort the rows by step")
    present = plain["layer_logits"].drop_null()
    lengths = pc.unique(pc.list_value_length(present)).to_pylist()
    if len(lengths) > 1:
        _refuse(source, f"has rows of {min(lengths)} and of {max(lengths)} layers; a model has one N")
    with np.errstate(over="ignore"):  # values too large for float32 become infinite
        values = pc.list_flatten(present).to_numpy().astype(np.float32)
    logits = values.reshape(len(present), lengths[0] if lengths else 0)
    place = np.flatnonzero(plain["layer_logits"].is_valid().to_numpy())
    return Recording(plain, step, prompt, plain["correct"].to_numpy().astype(bool), place, logits)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _refuse(source: Path, hint: str) -> NoReturn:
    raise ConfigError("STREAM", str(source), hint)
