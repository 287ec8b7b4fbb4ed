"""Copies a memory: to branch from another run's snapshot, or to continue one with another number of shards."""

from __future__ import annotations

import logging
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.locks import WAIT_SECONDS
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.log import LogState, lock_shard, write_rows
from meds_openrlhf.memory.rows import Sharding, owners_of, step_of
from meds_openrlhf.memory.snapshot import (
    BRANCH_SNAPSHOT,
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


def read_branch_point(manifest: Path) -> Snapshot:
    """Read the snapshot to branch from. Raises ConfigError if its manifest is missing or damaged."""
    if not manifest.is_file():
        _refuse(manifest, "is not a file. Name a manifest such as runs/old/memory/snapshots/global_step50.json.")
    try:
        return read_snapshot(manifest)
    except MemoryCorruptionError as error:
        _refuse(manifest, f"cannot be branched from: {error}")


def make_branch(manifest: Path, paths: MemoryPaths, wanted: MemoryFormat) -> MemoryFormat:
    """Fill the empty memory at ``paths`` from a snapshot, and commit the result as its snapshot `BRANCH_SNAPSHOT`.

    Returns the new memory's format, in which steps continue from the last step of the snapshot. Raises ConfigError if
    the snapshot's rows come from another model or feature variant, or if its files are damaged.
    """
    snapshot = read_branch_point(manifest)
    snapshot.format.require_match(wanted, manifest, "meds.memory.branch_from")
    branched = replace(wanted, step_offset=max(snapshot.state.step, 0))
    try:
        source = StoredMemory(MemoryPaths(manifest.absolute().parents[1]), snapshot.format)
        copied = _copy(source, paths, branched)
        _commit(copied, paths, BRANCH_SNAPSHOT, replace(snapshot, format=branched))
    except MemoryCorruptionError as error:
        _refuse(manifest, f"cannot be branched from: {error}")
    return branched


def rewrite_memory(paths: MemoryPaths, wanted: MemoryFormat, lock_seconds: float | None = WAIT_SECONDS) -> None:
    """Rewrite the memory at ``paths`` if it has another number of shards than ``wanted``.

    The next start undoes an interrupted rewrite, and begins again if it is still wanted: the old files stay in
    ``memory-before`` until ``format.json``, the last new file, is written. A snapshot that does not match the files,
    such as one of steps that a restart has undone, is skipped with a warning. Raises MemoryCorruptionError if a file of
    rows is damaged, and MemoryBusyError if another process writes to the memory.
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
        paths.root.rename(old.root)
        changed = replace(found, shards=wanted.shards)
        copied = _copy(StoredMemory(old, found), paths, changed)
        for manifest in old.manifests():
            try:
                _commit(copied, paths, manifest.stem, replace(read_snapshot(manifest), format=changed))
            except MemoryCorruptionError as error:
                logger.warning("a snapshot is skipped: %s", error)
        write_format(paths, changed)
        shutil.rmtree(old.root)


def _copy(source: StoredMemory, target: MemoryPaths, new: MemoryFormat) -> list[list[pa.RecordBatch]]:
    """Write all rows of a memory to one file for each shard of another; return the batches of each shard."""
    copied: list[list[pa.RecordBatch]] = [[] for _ in range(new.shards)]
    for _, rows in source.rows_by_step():
        owners = owners_of(rows, new.shards)
        for number in np.unique(owners).tolist():
            copied[number].append(rows.filter(pa.array(owners == number)))
    for number, batches in enumerate(copied):
        if batches:
            write_rows(target.shard(number), batches, Sharding(number, new.shards))
    return copied


def _commit(copied: list[list[pa.RecordBatch]], paths: MemoryPaths, name: str, snapshot: Snapshot) -> None:
    """Commit a snapshot of the source for its copy. Raises MemoryCorruptionError if its rows are not in the copy."""
    step, wanted = snapshot.state.step, sum(snapshot.state.rows.values())
    counts = [sum(len(batch) for batch in batches if step_of(batch) <= step) for batches in copied]
    if sum(counts) != wanted:
        text = f"has {sum(counts)} rows up to step {step}, and its snapshot {name} has {wanted}"
        raise MemoryCorruptionError(f"the memory of {paths.root} {text}; restore its files from a backup")
    rows = {paths.shard(number).name: count for number, count in enumerate(counts)}
    commit_snapshot(paths, name, replace(snapshot, state=LogState(step, rows)))


def _refuse(manifest: Path, hint: str) -> NoReturn:
    raise ConfigError("meds.memory.branch_from", str(manifest), hint)
