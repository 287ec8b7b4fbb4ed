"""Replays recorded rollouts, from any Arrow file or from a run's log, with other settings, without training.

The replay uses a real memory shard to store, cluster and answer, in a temporary folder.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meds_openrlhf.arrow_files import DamagedArrowError, read_arrow
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features.kind import MOST_VALUES
from meds_openrlhf.files import UnusableFileError, open_file
from meds_openrlhf.memory.rows import Sharding, make_rows, remembered_rows
from meds_openrlhf.memory.sets import UNASSIGNED
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings, ShardStats
from meds_openrlhf.memory.stored import StoredMemory
from meds_openrlhf.outputs import output_file
from meds_openrlhf.paths import MemoryPaths
from meds_openrlhf.shaping.penalty import cluster_penalty


def _is_key(found: pa.DataType) -> bool:
    plain = found.value_type if pa.types.is_dictionary(found) else found
    return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_integer(plain))


_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_COLUMNS = {
    "step": ("an integer", pa.types.is_integer),
    "prompt_key": ("string", _is_key),
    "correct": ("bool", pa.types.is_boolean),
    "layer_logits": (
        "fixed_size_list<float32>",
        lambda found: isinstance(found, _LISTS) and pa.types.is_floating(found.value_type),
    ),
}


@dataclass(frozen=True)
class Recording:
    """Rollouts (n) ordered by step: the ``table`` as recorded, and its columns as the memory takes them.

    ``layer_logits`` (m, N) float32 belong to the rows ``place`` (m,); the other rows have none.
    """

    table: pa.Table
    step: NDArray[np.int64]  # (n,)
    prompt: list[str]
    correct: NDArray[np.bool_]  # (n,)
    place: NDArray[np.int64]
    layer_logits: NDArray[np.float32]


def read_recording(path: Path) -> Recording:
    """Read an Arrow IPC file or stream. Raises ConfigError if it is neither or a column does not fit."""
    try:
        with open_file(path, named_by_user=True) as file:
            table = read_arrow(path, file.read())
    except UnusableFileError:
        raise
    except (DamagedArrowError, OSError) as error:
        _refuse(path, f"cannot be read as Arrow ({' '.join(str(error).split())})")
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            _refuse(path, f"has several columns {name}. Rename them.")
    for name, (wanted, fits) in _COLUMNS.items():
        if table.schema.get_field_index(name) < 0:
            _refuse(path, f"needs one column {name}. The columns are {', '.join(_COLUMNS)}.")
        if not fits(table.schema.field(name).type):
            _refuse(path, f"the column {name} has type {table.schema.field(name).type}, and must be {wanted}.")
        if table[name].null_count and name != "layer_logits":
            _refuse(path, f"the column {name} is null in some rows, which only layer_logits may be.")
    return _recording(table, path)


def recording_of(memory: StoredMemory) -> Recording:
    """Return all rows of a run's log as a recording, with the columns renamed to those of a stream."""
    chosen = memory.table().select(["step", "sample", "prompt", "correct", "layer_logits"])
    return _recording(chosen.rename_columns({"prompt": "prompt_key"}), memory.paths.root)


def _recording(table: pa.Table, source: Path) -> Recording:
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in table.schema]
    try:
        plain = table.cast(pa.schema(fields)).combine_chunks()
        step = plain["step"].cast(pa.int64()).to_numpy()
        prompt = plain["prompt_key"].cast(pa.string()).to_pylist()
    except (pa.ArrowException, LookupError) as error:
        _refuse(source, f"cannot be replayed ({' '.join(str(error).split())})")
    back = np.flatnonzero(np.diff(step) < 0)
    if len(back):
        _refuse(source, f"step {step[back[0] + 1]} follows step {step[back[0]]}. Sort the rows by step.")
    present = plain["layer_logits"].drop_null()
    lengths = pc.unique(pc.list_value_length(present)).to_pylist()
    if len(lengths) > 1:
        _refuse(source, f"some rows have {min(lengths)} layers and others {max(lengths)}. They must be of one model.")
    if lengths and lengths[0] > MOST_VALUES:
        _refuse(source, f"rows have {lengths[0]} layers. A memory's have at most {MOST_VALUES}.")
    with np.errstate(over="ignore"):  # values too large for float32 become infinite
        values = pc.list_flatten(present).to_numpy().astype(np.float32)
    logits = values.reshape(len(present), lengths[0] if lengths else 0)
    place = np.flatnonzero(plain["layer_logits"].is_valid().to_numpy())
    return Recording(plain, step, prompt, plain["correct"].to_numpy().astype(bool), place, logits)


@dataclass(frozen=True)
class ReplaySummary:
    """Counts of rollouts: all, ``remembered``, labeled (``assigned``), ``penalized``, with non-finite logits.

    ``penalty`` is the sum over all rollouts; ``clusters`` and ``noise`` are from the last clustering.
    """

    rows: int
    remembered: int
    assigned: int
    penalized: int
    broken: int
    penalty: float
    clusters: int
    noise: int


def replay(recording: Recording, settings: MedsSettings, target: Path) -> ReplaySummary:
    """Write the rows of ``recording`` to ``target``, an Arrow IPC file, with label, cluster size and penalty.

    The added columns are ``label`` (int64; -1 for noise; null for a rollout without a feature, with a verdict that is
    not remembered, or on a first visit), ``cluster_size`` (int64) and ``penalty`` (float32, 0 without a label). Rows
    keep their order; the labels of a step depend on earlier steps only. Raises ConfigError if the rows do not match the
    settings.
    """
    finite = np.isfinite(recording.layer_logits).all(axis=1)
    chosen = finite & remembered_rows(recording.correct[recording.place], settings.memory.remember)
    labels, sizes, stats = _answer(recording, np.flatnonzero(chosen), settings)
    penalties = cluster_penalty(sizes, alpha=settings.penalty.alpha, beta=settings.penalty.beta)
    answers = {
        "label": pa.array(labels, mask=labels == UNASSIGNED),
        "cluster_size": pa.array(sizes),
        "penalty": pa.array(penalties.astype(np.float32)),
    }
    table = recording.table.select([name for name in recording.table.column_names if name not in answers])
    for name, values in answers.items():
        table = table.append_column(pa.field(name, values.type, nullable=name == "label"), values)
    with output_file(target, "--out") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return ReplaySummary(
        rows=len(labels),
        remembered=int(chosen.sum()),
        assigned=int((labels != UNASSIGNED).sum()),
        penalized=int((penalties > 0).sum()),
        broken=int((~finite).sum()),
        penalty=float(penalties.sum()),
        clusters=stats.clusters,
        noise=stats.noise,
    )


def _answer(
    recording: Recording, chosen: NDArray[np.int64], settings: MedsSettings
) -> tuple[NDArray[np.int64], NDArray[np.int64], ShardStats]:
    """Return labels and sizes (n,), and the memory's contents at the end; it stores the ``chosen`` rows with logits."""
    labels, sizes = np.full(len(recording.step), UNASSIGNED, np.int64), np.zeros(len(recording.step), np.int64)
    if not len(chosen):
        return labels, sizes, ShardStats()
    layers = recording.layer_logits.shape[1]
    shard_settings = ShardSettings.of(settings, layers)
    steps = np.split(chosen, np.flatnonzero(np.diff(recording.step[recording.place[chosen]])) + 1)
    with (
        tempfile.TemporaryDirectory(prefix="meds-replay-") as folder,
        closing(MemoryShard(MemoryPaths(Path(folder)), Sharding(0, 1), shard_settings)) as shard,
    ):
        for number, of_step in enumerate(steps, 1):  # the recording's numbers need not rise by one
            places = recording.place[of_step]
            prompts = [recording.prompt[place] for place in places]
            rows = make_rows(places, prompts, recording.correct[places], recording.layer_logits[of_step])
            answer = shard.observe(number, rows)
            labels[answer.sample], sizes[answer.sample] = answer.label, answer.size
        shard.recluster()
        return labels, sizes, shard.stats()


def _refuse(source: Path, hint: str) -> NoReturn:
    raise ConfigError("FILE|RUN", str(source), hint)
