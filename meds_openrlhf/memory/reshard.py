"""Rewrites a memory, so that it goes on with another number of shards."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Container
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pyarrow as pa

from meds_openrlhf.locks import WAIT_SECONDS
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.log import LogState, lock_shard, write_rows
from meds_openrlhf.memory.rows import Sharding, owners_of, step_of
from meds_openrlhf.memory.snapshot import (
    MemoryFormat,
    Snapshot,
    commit_snapshot,
    read_format,
    read_snapshot,
    write_format,
)
from meds_openrlhf.memory.stored import StoredMemory
from meds_openrlhf.paths import MemoryPaths

logger = logging.getLogger(__name__)


def rewrite_memory(
    paths: MemoryPaths,
    wanted: MemoryFormat,
    lock_seconds: float | None = WAIT_SECONDS,
    checkpoints: Container[str] | None = None,
) -> None:
    """Rewrite the memory at ``paths`` if it has another number of shards than ``wanted``.

    The next start undoes an interrupted rewrite, and begins again if it is still wanted: the old files stay in
    ``memory-before`` until ``format.json``, the last new file, is written. A snapshot of none of the ``checkpoints``
    (None: all are of one), such as one of steps that a restart has undone, is skipped with a warning if it does not
    match the files. Raises MemoryCorruptionError, with nothing changed, if a file or another snapshot is damaged, and
    MemoryBusyError if another process writes to the memory.
    """
    old = paths.before
    if old.root.exists():  # a rewrite was interrupted, in the middle or at the very end
        is_whole = paths.format.exists()
        shutil.rmtree(old.root if is_whole else paths.root, ignore_errors=True)
        if not is_whole:
            old.root.rename(paths.root)
    found = read_format(paths)
    if found is None or found.shards == wanted.shards:
        return
    with ExitStack() as locks:
        for folder in paths.shard_folders().values():
            locks.enter_context(lock_shard(folder, lock_seconds))
        changed = replace(found, shards=wanted.shards)
        parts = _split(StoredMemory(paths, found), changed)
        snapshots = {}
        for manifest in paths.manifests():
            try:
                snapshots[manifest.stem] = _of_parts(read_snapshot(manifest), parts, paths, manifest.stem, changed)
            except MemoryCorruptionError as error:
                if checkpoints is None or manifest.stem in checkpoints:
                    raise
                logger.warning("a snapshot is skipped: %s", error)
        paths.root.rename(old.root)
        _write(parts, paths)
        for name, snapshot in snapshots.items():
            commit_snapshot(paths, name, snapshot)
        write_format(paths, changed)
        shutil.rmtree(old.root)


def _split(source: StoredMemory, new: MemoryFormat) -> list[list[pa.RecordBatch]]:
    """Return all rows of a memory, in batches of a step, for each shard of another."""
    parts: list[list[pa.RecordBatch]] = [[] for _ in range(new.shards)]
    for _, rows in source.rows_by_step():
        owners = owners_of(rows, new.shards)
        for number in np.unique(owners).tolist():
            parts[number].append(rows.filter(pa.array(owners == number)))
    return parts


def _write(parts: list[list[pa.RecordBatch]], target: MemoryPaths) -> None:
    """Write one file for each shard that has rows."""
    for number, batches in enumerate(parts):
        if batches:
            write_rows(target.shard(number), batches, Sharding(number, len(parts)))


def _of_parts(
    snapshot: Snapshot, parts: list[list[pa.RecordBatch]], paths: MemoryPaths, name: str, new: MemoryFormat
) -> Snapshot:
    """Return the source's snapshot ``name`` for the ``parts``. Raises MemoryCorruptionError if rows are missing."""
    step, wanted = snapshot.state.step, sum(snapshot.state.rows.values())
    counts = [sum(len(batch) for batch in batches if step_of(batch) <= step) for batches in parts]
    if sum(counts) != wanted:
        text = f"has {sum(counts)} rows up to step {step}, and its snapshot {name} has {wanted}"
        raise MemoryCorruptionError(f"the memory of {paths.root} {text}; restore its files from a backup")
    rows = {paths.shard(number).name: count for number, count in enumerate(counts)}
    return Snapshot(new, LogState(step, rows))
