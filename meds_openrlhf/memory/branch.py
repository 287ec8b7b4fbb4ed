"""Creates a new memory from a snapshot of another memory, with copies of its segments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.rows import log_schema
from meds_openrlhf.memory.segment import copy_beginning, read_batches, require_unchanged, step_of
from meds_openrlhf.memory.snapshot import MemoryFormat, Snapshot, commit_snapshot, read_snapshot, write_format
from meds_openrlhf.paths import MemoryPaths

BRANCH_SNAPSHOT = "branch"


def read_branch_point(manifest: Path) -> Snapshot:
    """Read the snapshot to branch from. Raises ConfigError if its manifest or one of its segments is missing."""
    if not manifest.is_file():
        _refuse(manifest, "is no file; name a manifest such as runs/old/memory/snapshots/global_step50.json")
    snapshot = read_snapshot(manifest)
    for state in snapshot.segments:
        if not (_memory_of(manifest) / state.name).is_file():
            _refuse(manifest, f"names {state.name}, which is missing beside it")
    return snapshot


def make_branch(manifest: Path, paths: MemoryPaths, wanted: MemoryFormat) -> MemoryFormat:
    """Fill the empty memory at ``paths`` from a snapshot, and commit the result as its snapshot `BRANCH_SNAPSHOT`.

    Returns the new memory's format, in which steps continue from the last step of the snapshot. Raises ConfigError if
    the snapshot's rows come from another model or feature variant, or if its files are damaged.
    """
    snapshot = read_branch_point(manifest)
    snapshot.format.require_match(wanted, manifest, "meds.memory.branch_from")
    last_step = 0
    for state in snapshot.segments:
        source, target = _memory_of(manifest) / state.name, paths.root / state.name
        try:
            require_unchanged(source, state)
            copy_beginning(source, target, state.bytes)
            steps = [step_of(batch) for batch, _ in read_batches(target, log_schema(wanted.layers))]
        except MemoryCorruptionError as error:
            _refuse(manifest, f"cannot be branched from: {error}")
        last_step = max([last_step, *steps])
    branched = replace(wanted, step_offset=last_step)
    commit_snapshot(paths, BRANCH_SNAPSHOT, Snapshot(branched, snapshot.config_hash, snapshot.segments))
    write_format(paths, branched)
    return branched


def _memory_of(manifest: Path) -> Path:
    return manifest.absolute().parents[1]


def _refuse(manifest: Path, hint: str) -> None:
    raise ConfigError("meds.memory.branch_from", str(manifest), hint)
