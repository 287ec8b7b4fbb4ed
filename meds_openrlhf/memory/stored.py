"""A memory on disk: its settings, its rows, its biggest clusters (the most frequent errors), and its damage.

It is read without a lock, so that its run can continue. Rows that the run stores meanwhile may or may not be visible.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import load_config, settings_of
from meds_openrlhf.config.method import ANSWERS
from meds_openrlhf.config.schema import MedsSettings
from meds_openrlhf.features.kind import Kind, transform_of
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.log import all_steps, steps_in
from meds_openrlhf.memory.rows import Sharding, groups_of, layer_logits_of, log_schema, owners_of, shard_of
from meds_openrlhf.memory.shard import History
from meds_openrlhf.memory.snapshot import MemoryFormat, read_format, read_snapshot
from meds_openrlhf.paths import MemoryPaths, RunPaths, entries_of

REPLAYABLE_FEATURES = ("layers", "difference", "normalize")  # of `meds.features`


def settings_with(changed: Mapping[str, Any]) -> MedsSettings:
    """Return the defaults with settings changed by full name, such as ``meds.memory.preset``, for rows without a run.

    Raises ConfigError for an unknown setting.
    """
    return settings_of({"meds.run_dir": ".", **changed})


@dataclass(frozen=True)
class LoadedRows:
    """All n rows of a memory, numbered and clustered as in ``history``; ``logits`` (n, N) are of all layers."""

    history: History
    step: NDArray[np.int32]  # (n,)
    sample: NDArray[np.int32]  # (n,)
    logits: NDArray[np.float32]


@dataclass(frozen=True)
class StoredMemory:
    """The files of one memory; ``run`` is the run that it belongs to, or None for a memory without a run."""

    paths: MemoryPaths
    format: MemoryFormat
    run: RunPaths | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of its files."""
        return log_schema(self.format.layers)

    def settings(self, changed: Mapping[str, Any] | None = None) -> MedsSettings:
        """Return the run's settings; without a run, as far as the memory's format records them.

        ``changed`` are settings by full name, which take precedence. Raises ConfigError for an unknown setting.
        """
        if self.run is not None and self.run.config.exists():
            return load_config(self.run.config, changed or {}).meds
        recorded = self.format.features
        known = {f"meds.features.{name}": recorded[name] for name in REPLAYABLE_FEATURES if name in recorded}
        if self.format.kind is Kind.ANSWERS:
            known = {"meds.memory.preset": ANSWERS}
        return settings_with({**known, **(changed or {})})

    def transform(self, meds: MedsSettings) -> FeatureTransform:
        """Return the transform for the rows. Raises ConfigError if the preset or the layers do not match them."""
        if (self.format.kind is Kind.ANSWERS) != (Kind.of(meds.features, meds.memory) is Kind.ANSWERS):
            hint = f"this memory holds {self.format.kind.value}. Choose a preset for those."
            raise ConfigError("meds.memory.preset", meds.memory.preset, hint)
        return transform_of(meds, self.format.layers)

    def rows_by_step(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each step with rows, and its rows from all shards, ordered by ``sample``.

        Raises MemoryCorruptionError if a file is damaged.
        """
        return ((stored.step, stored.rows) for stored in all_steps(self.paths, self.schema) if len(stored.rows))

    def table(self) -> pa.Table:
        """Return all rows, ordered by step and ``sample``; raises as `rows_by_step`."""
        return pa.Table.from_batches([rows for _, rows in self.rows_by_step()], self.schema)

    def load(self, meds: MedsSettings) -> LoadedRows:
        """Read all rows and cluster them with these settings; raises as `transform` and `rows_by_step`."""
        transform = self.transform(meds)
        history = History(transform.dimensions(self.format.layers), meds.memory.success_decay)
        parts = [(np.empty(0, np.int32), np.empty(0, np.int32), np.empty((0, self.format.layers), np.float32))]
        for step, rows, visits in all_steps(self.paths, self.schema):
            history.successes.add(visits)
            sample, logits = rows.column("sample").to_numpy(), layer_logits_of(rows)
            history.add(groups_of(rows), transform(logits))
            parts.append((np.full(len(rows), step, np.int32), sample, logits))
        history.cluster(list(history.groups.values()), meds.memory.method)
        return LoadedRows(history, *map(np.concatenate, zip(*parts)))


def has_memory(run: RunPaths) -> bool:
    """Whether a run's folder holds a memory, also one whose rewrite was interrupted. Raises as `open_memory`."""
    return read_format(run.memory) is not None


def open_memory(folder: Path) -> StoredMemory:
    """Open the memory in ``folder``, which is the folder of a run or of a memory.

    Raises ConfigError if there is no memory or it has another format version, and MemoryCorruptionError if its format
    cannot be read.
    """
    paths = MemoryPaths(folder)
    memory_format = read_format(paths)
    if memory_format is None:
        paths = RunPaths(folder).memory
        memory_format = read_format(paths)
    if memory_format is None:
        problem = "holds no memory" if folder.exists() else "does not exist"
        hint = f"{problem}. Name a run's folder, or a memory's (the one with format.json)."
        raise ConfigError("RUN", str(folder), hint)
    run = RunPaths(paths.root.absolute().parent)
    belongs = run.memory.root.name == paths.root.name and (run.config.exists() or run.lock.exists())
    held = paths if paths.format.exists() else paths.before  # of a rewrite that was interrupted
    return StoredMemory(held, memory_format, run if belongs else None)


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster: ``size`` rows, their ``share`` of the prompt's rows with that verdict, its first and last step."""

    prompt: str
    correct: bool
    size: int
    share: float
    first_step: int
    last_step: int


@dataclass(frozen=True)
class Overview:
    """The contents of a memory. ``steps`` counts steps with rows; without rows the first and last step are None.

    ``noise``: rows in no cluster; ``biggest``: the largest clusters first. ``visits`` were counted of ``visited``
    prompts, of which ``solved`` had a right response.
    """

    prompts: int
    wrong: int
    right: int
    steps: int
    first_step: int | None
    last_step: int | None
    files: int
    bytes: int
    snapshots: list[str]
    clusters: int
    noise: int
    biggest: list[ClusterFacts]
    visits: int
    visited: int
    solved: int


def survey(memory: StoredMemory, settings: MedsSettings, top: int = 10) -> Overview:
    """Cluster all prompts with ``settings``; return a summary with the ``top`` biggest clusters. Raises as `load`."""
    rows = memory.load(settings)
    history = rows.history
    wrong = sum(len(group.rows) for (_, correct), group in history.groups.items() if not correct)
    folders = memory.paths.shard_folders().values()
    files = [file for folder in folders for file in entries_of(memory.paths.root, folder) if file.suffix == ".arrow"]
    steps = np.unique(rows.step).tolist()
    return Overview(
        prompts=history.prompts,
        wrong=wrong,
        right=len(history) - wrong,
        steps=len(steps),
        first_step=steps[0] if steps else None,
        last_step=steps[-1] if steps else None,
        files=len(files),
        bytes=sum(file.stat().st_size for file in files),
        snapshots=[path.stem for path in memory.paths.manifests()],
        clusters=history.clusters,
        noise=history.noise,
        biggest=heapq.nlargest(top, _facts(rows), key=lambda cluster: cluster.size),
        visits=history.successes.visits,
        visited=history.successes.visited,
        solved=history.successes.solved,
    )


def _facts(rows: LoadedRows) -> Iterator[ClusterFacts]:
    for (prompt, correct), group in rows.history.groups.items():
        labels, steps = rows.history.labels[group.rows], rows.step[group.rows]
        for label in range(group.clusters):
            seen = steps[labels == label]
            yield ClusterFacts(prompt, correct, len(seen), len(seen) / len(labels), int(seen.min()), int(seen.max()))


@dataclass
class Verification:
    """Counts of what was verified; ``damage`` has a line for each fault, which names the file."""

    rows: int = 0
    snapshots: int = 0
    damage: list[str] = field(default_factory=list)
    visits: int = 0


def verify_memory(memory: StoredMemory) -> Verification:
    """Read the whole memory and check it against its checksums and its manifests.

    Manifests are read before rows, since an active run only adds to what they describe. Manifests that no
    complete checkpoint names are left over from steps that a restart has undone, and are not checked.
    """
    damage, snapshots = [], {}
    run = memory.run
    whole = {marker.name for marker in run.markers()} if run is not None and run.complete.is_dir() else None
    for path in memory.paths.manifests():
        if whole is None or path.stem in whole:
            try:
                snapshots[path] = read_snapshot(path)
            except MemoryCorruptionError as error:
                damage += [str(error)] if path.exists() else []  # otherwise, the run has just removed it
    keys: dict[str, list[int]] = {}  # by folder: step and sample of each row, in one number
    visits: dict[str, list[int]] = {}  # by folder: the step of each visit
    for folder in memory.paths.shard_folders().values():
        keys[folder.name], visits[folder.name] = [], []
        try:
            for step, rows, visited in steps_in(folder, memory.schema):
                sharding = Sharding.of(rows.schema)
                keys[folder.name] += ((step << 32) | rows.column("sample").to_numpy().astype(int)).tolist()
                visits[folder.name] += [step] * len(visited)
                owners = {*owners_of(rows, sharding.shards).tolist(), *(shard_of(p, sharding.shards) for p in visited)}
                if folder != memory.paths.shard(sharding.shard) or owners != {sharding.shard}:
                    damage.append(f"{folder}: step {step} has rows that belong to another shard")
        except MemoryCorruptionError as error:
            damage.append(str(error))
    everything = [key for of_folder in keys.values() for key in of_folder]
    if twice := len(everything) - len(set(everything)):
        damage.append(f"{memory.paths.root}: {twice} rows are stored twice")
    steps = {name: [key >> 32 for key in of_folder] for name, of_folder in keys.items()}  # in order, as files are
    for path, snapshot in snapshots.items():
        if (snapshot.format.layers, snapshot.format.model) != (memory.format.layers, memory.format.model):
            damage.append(f"{path}: was made with a different model than format.json")
        state = snapshot.state
        for what, counts, present in (("rows", state.rows, steps), ("visits", state.visits, visits)):
            for name in {**counts, **present}:
                found, wanted = bisect_right(present.get(name, []), state.step), counts.get(name, 0)
                if found != wanted:
                    damage.append(f"{path}: expects {wanted} {what} in {name}, but {found} are present and undamaged")
    return Verification(len(everything), len(snapshots), damage, sum(map(len, visits.values())))
