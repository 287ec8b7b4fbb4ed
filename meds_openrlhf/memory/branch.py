"""A new memory that begins where a snapshot of another one ends, sharing its files.

Sealed segments are hard-linked, so nothing is copied where both are on one file system; neither memory ever changes a
shared file. Only the part of a segment that was still being written at the snapshot is copied.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.rows import log_schema
from meds_openrlhf.memory.segment import SegmentState
from meds_openrlhf.memory.segment_index import index_path, read_index, scan_segment
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot, read_snapshot, write_format
from meds_openrlhf.paths import MemoryPaths

BRANCH_SNAPSHOT = "branch"


def read_branch_point(manifest: Path) -> Snapshot:
    """The snapshot to branch from. Raises ConfigError where it or a segment of it is not there."""
    if not manifest.is_file():
        raise ConfigError(
            "meds.memory.branch_from",
            str(manifest),
            "is no file; name a manifest such as runs/old/memory/snapshots/global_step50.json",
        )
    snapshot = read_snapshot(manifest)
    for state in snapshot.segments:
        if not (_memory_of(manifest) / state.name).is_file():
            raise ConfigError(
                "meds.memory.branch_from", str(manifest), f"names {state.name}, which is missing beside it"
            )
    return snapshot


def _memory_of(manifest: Path) -> Path:
    return manifest.absolute().parents[1]


def make_branch(manifest: Path, paths: MemoryPaths, wanted: MemoryFormat) -> MemoryFormat:
    """Fill the empty memory at ``paths`` from a snapshot, and commit that as its snapshot `BRANCH_SNAPSHOT`.

    Returns the new memory's format: steps go on from the last one of the snapshot. Raises ConfigError where its rows
    are another model's or another variant's, MemoryCorruptionError where its files are damaged.
    """
    snapshot = read_branch_point(manifest)
    snapshot.format.require_match(wanted, manifest)
    source = _memory_of(manifest)
    last_step = 0
    for state in snapshot.segments:
        last_step = max(last_step, _share(source / state.name, paths.root / state.name, state, wanted.layers))
    branched = replace(wanted, step_offset=last_step)
    commit_snapshot(paths, BRANCH_SNAPSHOT, Snapshot(branched, snapshot.config_hash, snapshot.segments))
    write_format(paths, branched)
    return branched


def _share(source: Path, target: Path, state: SegmentState, layers: int) -> int:
    """Give the new memory one segment; its last step."""
    index = read_index(source) or scan_segment(source, log_schema(layers))
    batches = index.batches_until(state) if index else None
    if index is None or batches is None:
        raise ConfigError("meds.memory.branch_from", str(source), "is not what the snapshot says; it is damaged")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # left by a branch that did not get to its end, and perhaps linked: never written to
    # Only a sealed segment has an index; to another one its run may still be adding.
    sealed = read_index(source) is not None
    if sealed and state.bytes == source.stat().st_size and _linked(source, target):
        shutil.copyfile(index_path(source), index_path(target))
    else:
        with source.open("rb") as old, target.open("wb") as new:
            shutil.copyfileobj(old, new)
            new.truncate(state.bytes)
            os.fsync(new.fileno())
    return index.batches[batches - 1].step


def _linked(source: Path, target: Path) -> bool:
    """Whether a hard link could be made: not across file systems, and not on all of them."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
