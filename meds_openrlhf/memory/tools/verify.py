"""Verifies a memory on disk: every checksum, count, shard and manifest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.branch import BRANCH_SNAPSHOT
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.rows import shard_of
from meds_openrlhf.memory.segment import SegmentState, Sharding, read_batches, read_sharding, step_of
from meds_openrlhf.memory.snapshot import Snapshot, read_snapshot
from meds_openrlhf.memory.tools.stored_memory import StoredMemory
from meds_openrlhf.paths import name_in_memory


@dataclass(frozen=True)
class Finding:
    """One line that names the file; ``damage`` is false for information that is not an error."""

    text: str
    damage: bool = True


@dataclass
class Verification:
    """Counts of the verified files and rows, and the findings."""

    segments: int = 0
    rows: int = 0
    snapshots: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def damage(self) -> list[Finding]:
        """The findings that are damage; empty for an intact memory."""
        return [finding for finding in self.findings if finding.damage]

    def add(self, file: Path, text: str, damage: bool = True) -> None:
        """Add a finding about a file."""
        self.findings.append(Finding(f"{file}: {text}", damage))


@dataclass
class _Scan:
    """The intact part of a segment, up to the first damage.

    ``keys`` combine step and sample of each row in one number; ``states`` are the states after each batch.
    """

    path: Path
    states: list[SegmentState] = field(default_factory=list)
    keys: list[NDArray[np.int64]] = field(default_factory=list)


def verify_memory(memory: StoredMemory) -> Verification:
    """Read the whole memory and check it against its checksums, schemas and manifests.

    Manifests are read before segments, since an active run only appends to the segments that they describe. A snapshot
    that no complete checkpoint names remains from a step that a restart has undone; a mismatch there is not damage.
    """
    report = Verification()
    snapshots = _read_snapshots(memory, report)
    scans: dict[str, _Scan] = {}
    for shard, paths in memory.segment_files().items():
        for path in paths:
            scan = _scan(memory, path, shard, path == paths[-1], report)
            if scan is not None:
                scans[name_in_memory(path)] = scan
    needed = _needed_snapshots(memory)
    for path, snapshot in snapshots.items():
        _check_snapshot(memory, path, snapshot, scans, needed is None or path.stem in needed, report)
    _check_unique(list(scans.values()), report)
    report.segments = len(scans)
    report.rows = sum(scan.states[-1].rows for scan in scans.values() if scan.states)
    report.snapshots = len(snapshots)
    return report


def _scan(memory: StoredMemory, path: Path, shard: int, newest: bool, report: Verification) -> _Scan | None:
    """Read a whole segment; None if it is gone or has no schema yet."""
    scan = _Scan(path)
    prompts: set[str] = set()
    try:
        size, sharding = path.stat().st_size, read_sharding(path)
        for batch, state in read_batches(path, memory.schema):
            step = step_of(batch)
            if scan.keys and step < scan.keys[-1][0] >> 32:
                report.add(path, f"step {step} comes after step {scan.keys[-1][0] >> 32}")
            scan.states.append(state)
            scan.keys.append((step << 32) | batch.column("sample").to_numpy().astype(np.int64))
            prompts.update(batch.column("prompt").to_pylist())
    except FileNotFoundError:
        return None  # the run has just removed it
    except MemoryCorruptionError as error:
        report.findings.append(Finding(str(error)))
        return scan
    excess = size - (scan.states[-1].bytes if scan.states else 0)
    if excess > 0:
        what = "being written, or left by a process that died" if newest else "though others came after it"
        report.add(path, f"{excess} bytes after its last whole batch are torn ({what})", damage=not newest)
    if sharding is None:
        return None
    _check_shard(path, shard, sharding, prompts, report)
    return scan


def _check_shard(path: Path, shard: int, sharding: Sharding, prompts: set[str], report: Verification) -> None:
    if sharding.shard != shard:
        report.add(path, f"says that shard {sharding.shard} wrote it, and lies in another's folder")
    strangers = {key for key in prompts if shard_of(key, sharding.shards) != sharding.shard}
    if strangers:
        text = f"holds prompts that belong to another shard than {sharding.shard} of {sharding.shards}"
        report.add(path, f"{text} ({len(strangers)}, one is {min(strangers)!r})")


def _read_snapshots(memory: StoredMemory, report: Verification) -> dict[Path, Snapshot]:
    found = {}
    for path in memory.manifests():
        try:
            found[path] = read_snapshot(path)
        except MemoryCorruptionError as error:
            if path.exists():  # otherwise the run has just removed it with its checkpoint
                report.findings.append(Finding(str(error)))
    return found


def _needed_snapshots(memory: StoredMemory) -> set[str] | None:
    """Return the snapshots that complete checkpoints name; None (all) if the run's checkpoints are unknown."""
    if memory.run is None or not memory.run.complete.is_dir():
        return None
    return {BRANCH_SNAPSHOT, *(marker.name for marker in memory.run.complete.iterdir())}


def _check_snapshot(
    memory: StoredMemory, path: Path, snapshot: Snapshot, scans: dict[str, _Scan], needed: bool, report: Verification
) -> None:
    aside = "" if needed else "; no whole checkpoint names this snapshot"
    if (snapshot.format.layers, snapshot.format.model) != (memory.format.layers, memory.format.model):
        report.add(path, f"is of another model than format.json{aside}", needed)
    if len({state.name for state in snapshot.segments}) < len(snapshot.segments):
        report.add(path, f"names a segment twice{aside}", needed)
    for state in snapshot.segments:
        wrong = _mismatch(state, scans.get(state.name))
        if wrong:
            report.add(path, f"does not fit {state.name}, {wrong}{aside}", needed)


def _mismatch(wanted: SegmentState, scan: _Scan | None) -> str | None:
    """Describe why a segment does not match a snapshot's state of it; None if it matches."""
    if scan is None or not scan.states:
        return "which is missing or cannot be read"
    if scan.states[0].shards != wanted.shards:
        return f"which was written by one of {scan.states[0].shards} shards, not of {wanted.shards}"
    found = next((state for state in scan.states if state.bytes == wanted.bytes), None)
    if found is None:
        return f"of which no sound batch ends at byte {wanted.bytes}"
    if found.crc32 != wanted.crc32:
        return f"whose checksum up to byte {wanted.bytes} differs"
    if found != wanted:
        counts = f"{found.rows} rows in {found.batches} batches"
        return f"which has {counts} up to there, not {wanted.rows} in {wanted.batches}"
    return None


def _check_unique(scans: list[_Scan], report: Verification) -> None:
    """Check that no rollout of a step is stored twice, in any segments."""
    parts = [np.concatenate([*scan.keys, np.empty(0, np.int64)]) for scan in scans]
    keys = np.concatenate([*parts, np.empty(0, np.int64)])
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(keys, kind="stable")
    again = order[1:][keys[order][1:] == keys[order][:-1]]
    for number in np.unique(owner[again]).tolist():
        repeated = keys[again[owner[again] == number]]
        step, sample = int(repeated[0]) >> 32, int(repeated[0]) & 0xFFFFFFFF
        text = f"{len(repeated)} rows are stored already (one is step {step}, sample {sample})"
        report.add(scans[number].path, text)
