"""The rollout log: responses, rewards and clusters, in one compressed Arrow file per step.

Files are written atomically, and a step that is trained again replaces its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meds_openrlhf.arrow_files import (
    CHECKSUM,
    NO_CHECKSUM,
    DamagedArrowError,
    matches_checksum,
    read_arrow,
    require_no_nulls,
    require_schema,
    with_checksum,
)
from meds_openrlhf.columns import ROLLOUT_SCHEMA
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import open_file, write_atomically
from meds_openrlhf.memory.sets import UNASSIGNED
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.texts import ResponseText

_COMPRESSION = pa.ipc.IpcWriteOptions(compression="zstd")


def rollout_table(step: int, responses: Sequence[ResponseText | None], **columns: Any) -> pa.Table:
    """Return the n rollouts of a step as rows of `ROLLOUT_SCHEMA`, in the order of ``sample``.

    ``columns`` (n) by name are those of the schema that do not follow from the others: not sample, penalty, nor what
    ``responses`` (n) have. A response is None if it is not decoded; ``label`` is UNASSIGNED where the memory assigned
    none.
    """
    reward, shaped = (np.asarray(columns[name], np.float32) for name in ("reward", "shaped_reward"))
    return pa.Table.from_pydict(
        {
            **columns,
            "step": [step] * len(responses),
            "sample": range(len(responses)),
            "response": [response and response.text for response in responses],
            "answer": [response and response.answer for response in responses],
            "answer_start": [response and response.answer_start for response in responses],
            "reward": reward,
            "shaped_reward": shaped,
            "penalty": reward - shaped,
            "label": pa.array(columns["label"], mask=columns["label"] == UNASSIGNED),
        },
        ROLLOUT_SCHEMA,
    )


def write_rollouts(paths: RunPaths, rollouts: pa.Table) -> None:
    """Write a step's rollouts, rows of `ROLLOUT_SCHEMA` ordered by sample. Raises OSError if they cannot be written."""
    sink = pa.BufferOutputStream()
    schema = ROLLOUT_SCHEMA.with_metadata({CHECKSUM: NO_CHECKSUM})
    with pa.ipc.new_file(sink, schema, options=_COMPRESSION) as writer:
        writer.write_table(rollouts.combine_chunks().replace_schema_metadata(schema.metadata))
    path = paths.rollouts(rollouts.column("step")[0].as_py())
    write_atomically(path, with_checksum(sink.getvalue().to_pybytes()))


def read_rollouts(paths: RunPaths, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rollouts of each logged step in order, with only ``columns`` if given. Raises like `read_step`."""
    for step in paths.rollout_steps():
        table = read_step(paths, step, columns)
        if table is not None:
            yield table


def read_step(paths: RunPaths, step: int, columns: Sequence[str] | None = None) -> pa.Table | None:
    """Read the rollouts of a step, with only ``columns`` if given; other columns are not even decompressed.

    Returns None if there is no file, e.g. because the run has just removed it. Raises ConfigError if the file is not a
    whole rollout log of the step, or has not these columns; earlier versions wrote logs without a checksum.
    """
    path = paths.rollouts(step)
    names = list(dict.fromkeys(columns or ROLLOUT_SCHEMA.names))
    try:
        with open_file(path) as file:
            content = file.read()
        table = read_arrow(path, content, list(dict.fromkeys(["step", *names])))
        if CHECKSUM.encode() in (table.schema.metadata or {}) and not matches_checksum(content):
            raise DamagedArrowError("it does not match its checksum")
        require_schema(table.schema, pa.schema([ROLLOUT_SCHEMA.field(name) for name in table.column_names]))
        require_no_nulls(table)
        if table["step"].unique().to_pylist() not in ([], [step]):
            raise DamagedArrowError("it has rows of other steps")
        if "sample" in names and len(table["sample"].unique()) != len(table):
            raise DamagedArrowError("it has a sample twice")
    except FileNotFoundError:
        return None
    except DamagedArrowError as error:
        hint = f"cannot be read as Arrow, or not by this version ({error}). Restore it from a backup, or remove it."
        raise ConfigError("RUN", str(path), hint) from error
    return table.select(names)


def sample_texts(rollouts: pa.Table) -> pa.Table:
    """Keep the first response for each prompt, verdict, cluster and answer; the others lose only their texts."""
    keys = ["prompt", "correct", "label", "answer"]
    rows = rollouts.select(keys).append_column("row", pa.array(range(len(rollouts))))
    first = rows.group_by(keys).aggregate([("row", "min")])["row_min"]
    texts = pc.if_else(pc.is_in(rows["row"], first), rollouts["response"], pa.scalar(None, pa.string()))
    return rollouts.set_column(rollouts.schema.get_field_index("response"), ROLLOUT_SCHEMA.field("response"), texts)
