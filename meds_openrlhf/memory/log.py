"""The log of one shard: an Arrow file for the rows and visits of each step, merged into one file at a checkpoint.

A file is written under a temporary name, synced and renamed, so every file of the log is complete. docs/storage.md is
the specification.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from meds_openrlhf.arrow_files import (
    CHECKSUM,
    NO_CHECKSUM,
    DamagedArrowError,
    matches_checksum,
    read_batches,
    with_checksum,
)
from meds_openrlhf.files import make_folder, open_file, sync_folder, write_atomically
from meds_openrlhf.locks import WAIT_SECONDS, FolderInUseError, lock_folder
from meds_openrlhf.memory.errors import MemoryBusyError, MemoryCorruptionError
from meds_openrlhf.memory.rows import NEVER_NULL, Sharding
from meds_openrlhf.memory.successes import Visit, visits_from_json, visits_to_json
from meds_openrlhf.paths import MemoryPaths, step_files, steps_name

ASIDE = "aside"  # the folder of a shard's files that it no longer reads
STEP, VISITS = "step", "visits"  # in the metadata of a step's record batch


class StoredStep(NamedTuple):
    """A step in the log: its rows (n >= 0), and its visits by prompt; one of both is not empty."""

    step: int
    rows: pa.RecordBatch
    visits: dict[str, Visit]


@dataclass(frozen=True)
class LogState:
    """The state of a log: the last step, and the number of rows and visits up to it by folder, ``shard-0003``.

    Memories of earlier versions have no visits.
    """

    step: int
    rows: dict[str, int]
    visits: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of_shards(states: Iterable[LogState]) -> LogState:
        """Return the states of several shards as one."""
        states = list(states)
        rows, visits = (
            {name: count for part in parts for name, count in part.items()}
            for parts in ([state.rows for state in states], [state.visits for state in states])
        )
        return LogState(max(state.step for state in states), rows, visits)


def write_steps(folder: Path, steps: list[StoredStep], sharding: Sharding) -> Path:
    """Durably write whole steps, in order, to one file of a shard's folder; return its path. Raises OSError."""
    metadata = {"shard": str(sharding.shard), "shards": str(sharding.shards), CHECKSUM: NO_CHECKSUM.decode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, steps[0].rows.schema.with_metadata(metadata)) as writer:
        for step, rows, visits in steps:
            of_batch = {STEP: str(step), VISITS: visits_to_json(visits)} if visits else None
            writer.write_batch(rows.replace_schema_metadata(None), custom_metadata=of_batch)
    path = folder / steps_name(steps[0].step, steps[-1].step)
    write_atomically(path, with_checksum(sink.getvalue().to_pybytes()))
    return path


def read_steps(path: Path, schema: pa.Schema) -> list[StoredStep]:
    """Read a file. Raises MemoryCorruptionError unless it is whole and is what was written."""
    try:
        with open_file(path) as file:
            content = file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise MemoryCorruptionError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not matches_checksum(content):
        raise MemoryCorruptionError(f"{path}: is damaged (it does not match its checksum); restore it from a backup")
    try:
        batches = read_batches(path, content)
        for batch, _ in batches[:1]:
            if not batch.schema.equals(schema):
                raise MemoryCorruptionError(f"{path}: holds other columns than this memory's; is it another model's?")
            Sharding.of(batch.schema)
        stored = [_stored_step(batch, metadata) for batch, metadata in batches]
    except (DamagedArrowError, ValueError) as error:
        raise MemoryCorruptionError(f"{path}: is damaged ({error}); restore it from a backup") from error
    steps = [each.step for each in stored]
    if not steps or steps != sorted(set(steps)) or path.name != steps_name(steps[0], steps[-1]):
        raise MemoryCorruptionError(f"{path}: does not hold the steps of its name; restore it from a backup")
    return stored


def _stored_step(rows: pa.RecordBatch, metadata: dict[bytes, bytes]) -> StoredStep:
    """Return a file's batch and its metadata as a step. Raises ValueError, mostly DamagedArrowError."""
    columns = rows.columns
    logits = columns[-1].values
    if any(columns[place].null_count for place in NEVER_NULL) or logits.null_count:
        raise DamagedArrowError("a column has nulls that cannot have any")
    if not np.isfinite(logits.to_numpy()).all():
        raise DamagedArrowError("a row has a value that is not finite")
    visits = visits_from_json(metadata.get(VISITS.encode(), b"{}"))
    steps = set(np.unique(columns[0].to_numpy()).tolist())
    if visits:
        steps.add(int(metadata.get(STEP.encode(), b"")))
    if len(steps) != 1:
        raise DamagedArrowError("a batch has neither rows nor visits, or those of several steps")
    return StoredStep(steps.pop(), rows, visits)


def steps_in(folder: Path, schema: pa.Schema) -> Iterator[StoredStep]:
    """Yield the steps in a shard's folder, also while a run writes there.

    If the run merges files meanwhile, reading continues after the last step. Raises MemoryCorruptionError if a file is
    damaged.
    """
    done = -1
    while True:
        files = step_files(folder)[0]
        try:
            for file in files:
                if file.last > done:
                    yield from (stored for stored in read_steps(file.path, schema) if stored.step > done)
                    done = file.last
            return
        except FileNotFoundError as error:
            if step_files(folder)[0] == files:
                raise MemoryCorruptionError(f"{error.filename}: leads nowhere; restore it from a backup") from error


def all_steps(paths: MemoryPaths, schema: pa.Schema) -> Iterator[StoredStep]:
    """Yield each step of all shards, its rows ordered by ``sample``; raises as `steps_in`."""
    folders = [steps_in(folder, schema) for folder in paths.shard_folders().values()]
    for step, parts in groupby(heapq.merge(*folders, key=attrgetter("step")), key=attrgetter("step")):
        of_shards = list(parts)
        rows = pa.concat_batches([stored.rows.replace_schema_metadata(None) for stored in of_shards])
        rows = rows.take(pa.array(np.argsort(rows.column("sample").to_numpy(), kind="stable")))
        visits = {prompt: visit for stored in of_shards for prompt, visit in stored.visits.items()}
        yield StoredStep(step, rows, visits)


def lock_shard(folder: Path, seconds: float | None) -> BinaryIO:
    """Lock a shard's folder until the file is closed. Raises MemoryBusyError if another process still writes there."""
    make_folder(folder)
    try:
        return lock_folder(folder / ".lock", seconds)
    except FolderInUseError as error:
        raise MemoryBusyError(f"{folder}: {error}") from error


class ShardLog:
    """The files of one shard. Only one writer may be active; it holds the lock of the folder."""

    def __init__(
        self, paths: MemoryPaths, sharding: Sharding, schema: pa.Schema, lock_seconds: float | None = WAIT_SECONDS
    ) -> None:
        self._folder = paths.shard(sharding.shard)
        self._sharding = sharding
        self._schema = schema
        self._lock_seconds = lock_seconds
        self._lock: BinaryIO | None = None
        self.last_step, self.rows, self.visits, self.bytes = -1, 0, 0, 0

    def open(self) -> Iterator[StoredStep]:
        """Lock the folder and yield its steps, oldest first; exhaust the iterator before `append`.

        Files whose rows a merged file also has are moved aside, after that has been read. Raises MemoryBusyError if
        another process writes to the folder, and MemoryCorruptionError if a file is damaged.
        """
        self._lock = self._lock or lock_shard(self._folder, self._lock_seconds)
        self.last_step, self.rows, self.visits, self.bytes = -1, 0, 0, 0
        files, left_over = step_files(self._folder)
        for file in files:
            for stored in self._read(file.path):
                if stored.step <= self.last_step:
                    raise MemoryCorruptionError(f"{file.path}: has rows of steps that other files have too")
                self._count(stored)
                yield stored
            self.bytes += file.path.stat().st_size
        self._move_aside(left_over)

    def append(self, stored: StoredStep) -> None:
        """Store one step; it is on disk when this returns. Raises OSError, with nothing stored, otherwise."""
        step = stored.step
        path = self._folder / steps_name(step, step)
        was_there = path.exists()
        try:
            write_steps(self._folder, [stored], self._sharding)
        except OSError as error:
            if not was_there:  # its name alone could not be synced
                path.unlink(missing_ok=True)
            message = f"{self._folder}: the rows of step {step} could not be written ({error.strerror or error})"
            raise OSError(error.errno, f"{message}; nothing was stored") from error
        self._count(stored)
        self.bytes += path.stat().st_size

    def stored(self, step: int) -> StoredStep | None:
        """Read a step from disk; None if it has neither rows nor visits."""
        for file in step_files(self._folder)[0]:
            if file.first <= step <= file.last:
                return next((stored for stored in self._read(file.path) if stored.step == step), None)
        return None

    def merge(self) -> LogState:
        """Merge the files of single steps into one, and return the state. Raises MemoryCorruptionError for damage."""
        parts = [file.path for file in step_files(self._folder)[0] if file.first == file.last]
        if len(parts) > 1:
            steps = [stored for path in parts for stored in self._read(path)]
            merged = write_steps(self._folder, steps, self._sharding)
            self._read(merged)
            for path in parts:
                path.unlink()
            sync_folder(self._folder)
            self.bytes = sum(file.path.stat().st_size for file in step_files(self._folder)[0])
        return LogState(self.last_step, {self._folder.name: self.rows}, {self._folder.name: self.visits})

    def restore(self, state: LogState) -> None:
        """Move all steps aside that were stored after ``state``, that of the whole memory; call `open` afterwards.

        Raises MemoryCorruptionError, before it moves anything, if the number of rows or visits up to the state's step
        differs.
        """
        self._lock = self._lock or lock_shard(self._folder, self._lock_seconds)
        files, left_over = step_files(self._folder)
        found, name = np.zeros(2, int), self._folder.name
        doomed: list[Path] = []
        cut: list[StoredStep] = []  # steps to keep of files that also have later ones
        for file in files:
            steps = self._read(file.path) if file.first <= state.step else []
            kept = [stored for stored in steps if stored.step <= state.step]
            found += [sum(len(stored.rows) for stored in kept), sum(len(stored.visits) for stored in kept)]
            if file.last > state.step:
                cut += kept
                doomed.append(file.path)
        for what, has, wanted in zip(("rows", "visits"), found.tolist(), (state.rows, state.visits)):
            if has != wanted.get(name, 0):
                holds = f"holds {has} {what} up to step {state.step}, and the snapshot to restore has"
                text = f"{holds} {wanted.get(name, 0)}; restore its files from a backup"
                raise MemoryCorruptionError(f"{self._folder}: {text}")
        self._move_aside(left_over)  # first: the file of `cut` may have the name of one
        if cut:
            write_steps(self._folder, cut, self._sharding)
        self._move_aside(doomed)

    def close(self) -> None:
        """Release the folder for other processes."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _count(self, stored: StoredStep) -> None:
        self.last_step, self.rows = stored.step, self.rows + len(stored.rows)
        self.visits += len(stored.visits)

    def _read(self, path: Path) -> list[StoredStep]:
        steps = read_steps(path, self._schema)
        sharding = Sharding.of(steps[0].rows.schema)
        if sharding != self._sharding:
            raise MemoryCorruptionError(f"{path}: was written by {sharding}, and is read by {self._sharding}")
        return steps

    def _move_aside(self, paths: list[Path]) -> None:
        """Take files out of the log, in place of those with the same names that were moved aside before."""
        aside = self._folder / ASIDE
        for path in paths:
            aside.mkdir(exist_ok=True)
            os.replace(path, aside / path.name)
        if paths:
            sync_folder(self._folder)
