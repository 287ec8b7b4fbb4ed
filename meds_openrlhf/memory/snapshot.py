"""The format that identifies a memory, and the manifests of its snapshots: small JSON files, committed by rename.

A memory is rewritten, so that it goes on with another number of shards, together with both.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Container
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.removed import without_removed
from meds_openrlhf.config.schema import MOST_SHARDS, MedsSettings
from meds_openrlhf.features.kind import MOST_VALUES, Feature, Kind, features_of_rows
from meds_openrlhf.files import read_file, write_atomically
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.locks import WAIT_SECONDS
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.log import LogState, StoredStep, all_steps, lock_shard, write_steps
from meds_openrlhf.memory.rows import Sharding, group_rows, log_schema, owners_of, shard_of
from meds_openrlhf.paths import MOST_STEPS, MemoryPaths

logger = logging.getLogger(__name__)
FORMAT_VERSION = 3
# Fields of a format that this version does not have, by dotted name, with their defaults.
REMOVED: dict[str, Any] = {
    "features.answer_openings": ["\\boxed{"],
    "step_offset": 0,
}


@dataclass(frozen=True)
class MemoryFormat:
    """The format of a memory's rows, fixed when the memory is created.

    ``model`` identifies the policy (architecture, layers, sizes), because logits of different models are not
    comparable. ``features`` records how rows are computed and compared (settings of ``meds.features``), because other
    variants give other clusters. ``shards`` may change between starts.
    """

    shards: int
    layers: int
    model: dict[str, Any]
    features: dict[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @staticmethod
    def of(meds: MedsSettings, feature: Feature) -> MemoryFormat:
        """Return the format of a memory with these settings that holds rows of the ``feature``."""
        features = asdict(features_of_rows(meds.features, meds.memory))
        del features["function"]  # the file may move; the model has the digest of its content
        return MemoryFormat(meds.memory.shards, feature.values, feature.model, features)

    @property
    def kind(self) -> Kind:
        """What rows are."""
        return Kind.in_format(self.model)

    def require_match(self, other: MemoryFormat, folder: Path, setting: str = "meds.run_dir") -> None:
        """Raise ConfigError, naming the field, unless a memory of this format can continue with the format ``other``.

        ``folder`` contains the memory; ``setting`` is the setting that names it.
        """
        if (self.model, self.layers) != (other.model, other.layers):
            here, there = (", ".join(f"{key} {item}" for key, item in of.items()) for of in (self.model, other.model))
            hint = f"holds the memory of another model or feature ({here}), not of {there}. Name another folder."
            raise ConfigError(setting, str(folder), hint)
        for name, value in self.features.items():
            wanted = other.features.get(name, False)  # a setting that has been removed since counts as off
            if wanted != value:
                hint = f"the memory in {folder} was made with {value!r}. Set that, or name another folder."
                raise ConfigError(f"meds.features.{name}", wanted, hint)


def read_format(paths: MemoryPaths) -> MemoryFormat | None:
    """Return the format of the memory in ``paths``, or None if there is none yet."""
    # Without a format file, `rewrite_memory` was interrupted, and the old folder has the format.
    path = paths.format if paths.format.exists() else paths.before.format
    return _parse_format(_read_json(path), path) if path.exists() else None


def _parse_format(content: Any, source: Path) -> MemoryFormat:
    """Parse a format. Raises ConfigError for one of another version, MemoryCorruptionError for invalid content."""
    try:
        version = content.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            hint = f"has a memory of format {version}, but this version reads {FORMAT_VERSION}. Use its own version."
            raise ConfigError("meds.run_dir", str(source), hint)
        advice = f"Read {source} with the version that wrote it."
        found = MemoryFormat(**without_removed(content, REMOVED, advice))
        if not all(isinstance(value, dict) for value in (found.model, found.features)):
            raise TypeError("a field has the wrong type")
        limits = {"shards": (1, MOST_SHARDS), "layers": (1, MOST_VALUES)}
        for name, (least, most) in limits.items():
            number = getattr(found, name)
            if type(number) is not int or not least <= number <= most:
                raise TypeError(f"{name} has the wrong type, or is not from {least} to {most}: {number!r}")
    except (AttributeError, TypeError) as error:
        raise MemoryCorruptionError(f"{source}: is not a memory format ({error})") from error
    return found


def write_format(paths: MemoryPaths, memory_format: MemoryFormat) -> None:
    """Record the format of a new memory."""
    write_atomically(paths.format, json.dumps(asdict(memory_format), indent=2) + "\n")


@dataclass(frozen=True)
class Snapshot:
    """The memory at a checkpoint: its format, and the state of the log."""

    format: MemoryFormat
    state: LogState


def commit_snapshot(paths: MemoryPaths, name: str, snapshot: Snapshot) -> None:
    """Atomically publish the manifest ``name``."""
    content = {"format": asdict(snapshot.format), **asdict(snapshot.state)}
    write_atomically(paths.snapshot(name), json.dumps(content, indent=1) + "\n")


def read_snapshot(path: Path) -> Snapshot:
    """Read a manifest. Raises MemoryCorruptionError if it is missing or damaged."""
    if not path.exists():
        raise MemoryCorruptionError(f"{path}: is missing, but a checkpoint names it; restore it from a backup")
    found = _read_json(path)
    try:
        memory_format = _parse_format(found["format"], path)
        counts = [
            {folder: index(count) for folder, count in given.items()}
            for given in (found["rows"], found.get("visits", {}))  # which earlier versions did not count
        ]
        state = LogState(index(found["step"]), *counts)
        if not -1 <= state.step < MOST_STEPS or min((n for of in counts for n in of.values()), default=0) < 0:
            raise TypeError("a step or a count is impossible")
    except (KeyError, TypeError, AttributeError) as error:
        raise MemoryCorruptionError(f"{path}: is not a snapshot's manifest ({error!r})") from error
    return Snapshot(memory_format, state)


def _read_json(path: Path) -> Any:
    try:
        return parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise MemoryCorruptionError(f"{path}: cannot be read ({error})") from error


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
        parts = _split(paths, found.layers, changed.shards)
        snapshots = {}
        for manifest in paths.manifests():
            try:
                snapshots[manifest.stem] = _of_parts(read_snapshot(manifest), parts, paths, manifest.stem, changed)
            except MemoryCorruptionError as error:
                if checkpoints is None or manifest.stem in checkpoints:
                    raise
                logger.warning("a snapshot is skipped: %s", error)
        paths.root.rename(old.root)
        for number, steps in enumerate(parts):
            if steps:
                write_steps(paths.shard(number), steps, Sharding(number, len(parts)))
        for name, snapshot in snapshots.items():
            commit_snapshot(paths, name, snapshot)
        write_format(paths, changed)
        shutil.rmtree(old.root)


def _split(paths: MemoryPaths, layers: int, shards: int) -> list[list[StoredStep]]:
    """Return all steps of a memory, for each of another number of shards."""
    parts: list[list[StoredStep]] = [[] for _ in range(shards)]
    for step, rows, visits in all_steps(paths, log_schema(layers)):
        owners, owner_of = owners_of(rows, shards), {prompt: shard_of(prompt, shards) for prompt in visits}
        for number in sorted({*np.unique(owners).tolist(), *owner_of.values()}):
            own = {prompt: visit for prompt, visit in visits.items() if owner_of[prompt] == number}
            parts[number].append(StoredStep(step, group_rows(rows.filter(pa.array(owners == number))), own))
    return parts


def _of_parts(
    snapshot: Snapshot, parts: list[list[StoredStep]], paths: MemoryPaths, name: str, new: MemoryFormat
) -> Snapshot:
    """Return the source's snapshot ``name`` for the ``parts``. Raises MemoryCorruptionError if rows are missing."""
    step, counted = snapshot.state.step, []
    kept = [[stored for stored in steps if stored.step <= step] for steps in parts]
    for what, wanted in (("rows", snapshot.state.rows), ("visits", snapshot.state.visits)):
        counts = [sum(len(getattr(stored, what)) for stored in steps) for steps in kept]
        if sum(counts) != sum(wanted.values()):
            text = f"has {sum(counts)} {what} up to step {step}, and its snapshot {name} has {sum(wanted.values())}"
            raise MemoryCorruptionError(f"the memory of {paths.root} {text}; restore its files from a backup")
        counted.append({paths.shard(number).name: count for number, count in enumerate(counts)})
    return Snapshot(new, LogState(step, *counted))
