"""Verifies a memory on disk: every checksum, the shard of every prompt, and every manifest."""

from __future__ import annotations

from dataclasses import dataclass, field

from meds_openrlhf.memory.branch import BRANCH_SNAPSHOT
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.rows import Sharding, owners_of, step_of
from meds_openrlhf.memory.snapshot import read_snapshot
from meds_openrlhf.memory.stored import StoredMemory


@dataclass
class Verification:
    """Counts of the verified rows and snapshots; ``damage`` has a line for each fault, which names the file."""

    rows: int = 0
    snapshots: int = 0
    damage: list[str] = field(default_factory=list)


def verify_memory(memory: StoredMemory) -> Verification:
    """Read the whole memory and check it against its checksums and its manifests.

    Manifests are read before rows, since an active run only adds to what they describe. Those that no complete
    checkpoint names are left over from steps that a restart has undone, and are not checked.
    """
    damage, snapshots = [], {}
    markers = None if memory.run is None else memory.run.complete
    whole = None if markers is None or not markers.is_dir() else {marker.name for marker in markers.iterdir()}
    for path in memory.manifests():
        if whole is None or path.stem in {BRANCH_SNAPSHOT, *whole}:
            try:
                snapshots[path] = read_snapshot(path)
            except MemoryCorruptionError as error:
                damage += [str(error)] if path.exists() else []  # else the run has just removed it
    keys: dict[str, list[int]] = {}  # by folder: step and sample of each row, in one number
    for folder in memory.paths.shard_folders().values():
        keys[folder.name] = []
        try:
            for batch in memory.batches_in(folder):
                step, sharding = step_of(batch), Sharding.of(batch.schema)
                keys[folder.name] += ((step << 32) | batch.column("sample").to_numpy().astype(int)).tolist()
                owners = owners_of(batch, sharding.shards)
                if folder != memory.paths.shard(sharding.shard) or (owners != sharding.shard).any():
                    damage.append(f"{folder}: step {step} has rows that belong to another shard")
        except MemoryCorruptionError as error:
            damage.append(str(error))
    everything = [key for of_folder in keys.values() for key in of_folder]
    if len(set(everything)) < len(everything):
        damage.append(f"{memory.paths.root}: {len(everything) - len(set(everything))} rows are stored twice")
    for path, snapshot in snapshots.items():
        if (snapshot.format.layers, snapshot.format.model) != (memory.format.layers, memory.format.model):
            damage.append(f"{path}: is of another model than format.json")
        for name, wanted in snapshot.state.rows.items():
            found = sum(key >> 32 <= snapshot.state.step for key in keys.get(name, []))
            if found != wanted:
                damage.append(f"{path}: has {wanted} rows in {name}, of which {found} are there and sound")
    return Verification(len(everything), len(snapshots), damage)
