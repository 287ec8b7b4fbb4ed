"""The log of one shard: an Arrow file for the rows of each step, merged into one file at a checkpoint.

A file is written under a temporary name, synced and renamed, so every file of the log is complete. docs/storage.md is
the specification.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

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
from meds_openrlhf.memory.rows import NEVER_NULL, Sharding, step_of
from meds_openrlhf.paths import MemoryPaths, step_files, steps_name

ASIDE = "aside"  # the folder of a shard's files that it no longer reads


@dataclass(frozen=True)
class LogState:
    """The state of a log: the last step, and the number of rows up to it by folder, such as ``shard-0003``."""

    step: int
    rows: dict[str, int]


def write_rows(folder: Path, batches: list[pa.RecordBatch], sharding: Sharding) -> Path:
    """Durably write whole steps, in order, to one file of a shard's folder; return its path. Raises OSError."""
    metadata = {"shard": str(sharding.shard), "shards": str(sharding.shards), CHECKSUM: NO_CHECKSUM.decode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema.with_metadata(metadata)) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(None))
    path = folder / steps_name(step_of(batches[0]), step_of(batches[-1]))
    write_atomically(path, with_checksum(sink.getvalue().to_pybytes()))
    return path


def read_rows(path: Path, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Read a file, a batch for each step. Raises MemoryCorruptionError unless it is whole and is what was written."""
    try:
        with open_file(path) as file:
            content = memoryview(file.read())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise MemoryCorruptionError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not matches_checksum(content):
        raise MemoryCorruptionError(f"{path}: is damaged (it does not match its checksum); restore it from a backup")
    try:
        batches = read_batches(path, content)
        for batch in batches[:1]:
            if not batch.schema.equals(schema):
                raise MemoryCorruptionError(f"{path}: holds other columns than this memory's; is it another model's?")
            Sharding.of(batch.schema)
        steps = [_only_step(batch) for batch in batches]
    except (DamagedArrowError, ValueError) as error:
        raise MemoryCorruptionError(f"{path}: is damaged ({error}); restore it from a backup") from error
    if not steps or steps != sorted(set(steps)) or path.name != steps_name(steps[0], steps[-1]):
        raise MemoryCorruptionError(f"{path}: does not hold the steps of its name; restore it from a backup")
    return batches


def _only_step(batch: pa.RecordBatch) -> int:
    columns = batch.columns
    logits = columns[-1].values
    if any(columns[place].null_count for place in NEVER_NULL) or logits.null_count:
        raise DamagedArrowError("a column has nulls that cannot have any")
    if not np.isfinite(logits.to_numpy()).all():
        raise DamagedArrowError("a row has a value that is not finite")
    steps = columns[0].to_numpy()
    if not len(steps) or (steps != steps[0]).any():
        raise DamagedArrowError("a batch has no row, or rows of several steps")
    return int(steps[0])


def batches_in(folder: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows in a shard's folder, a batch for each step, also while a run writes there.

    If the run merges files meanwhile, reading continues after the last step. Raises MemoryCorruptionError if a file is
    damaged.
    """
    done = -1
    while True:
        files = step_files(folder)[0]
        try:
            for file in files:
                if file.last > done:
                    yield from (batch for batch in read_rows(file.path, schema) if step_of(batch) > done)
                    done = file.last
            return
        except FileNotFoundError as error:
            if step_files(folder)[0] == files:
                raise MemoryCorruptionError(f"{error.filename}: leads nowhere; restore it from a backup") from error


def rows_by_step(paths: MemoryPaths, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each step with rows, and its rows from all shards, ordered by ``sample``; raises as `batches_in`."""
    folders = [batches_in(folder, schema) for folder in paths.shard_folders().values()]
    for step, batches in groupby(heapq.merge(*folders, key=step_of), key=step_of):
        rows = pa.concat_batches([batch.replace_schema_metadata(None) for batch in batches])
        yield step, rows.take(pa.array(np.argsort(rows.column("sample").to_numpy(), kind="stable")))


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
        self.last_step, self.rows, self.bytes = -1, 0, 0

    def open(self) -> Iterator[pa.RecordBatch]:
        """Lock the folder and yield its rows, oldest step first; exhaust the iterator before `append`.

        Files whose rows a merged file also has are moved aside, after that has been read. Raises MemoryBusyError if
        another process writes to the folder, and MemoryCorruptionError if a file is damaged.
        """
        self._lock = self._lock or lock_shard(self._folder, self._lock_seconds)
        self.last_step, self.rows, self.bytes = -1, 0, 0
        files, left_over = step_files(self._folder)
        for file in files:
            for batch in self._read(file.path):
                if step_of(batch) <= self.last_step:
                    raise MemoryCorruptionError(f"{file.path}: has rows of steps that other files have too")
                self.last_step, self.rows = step_of(batch), self.rows + len(batch)
                yield batch
            self.bytes += file.path.stat().st_size
        self._move_aside(left_over)

    def append(self, batch: pa.RecordBatch) -> None:
        """Store one step's rows; they are on disk when this returns. Raises OSError, with nothing stored, otherwise."""
        step = step_of(batch)
        path = self._folder / steps_name(step, step)
        was_there = path.exists()
        try:
            write_rows(self._folder, [batch], self._sharding)
        except OSError as error:
            if not was_there:  # its name alone could not be synced
                path.unlink(missing_ok=True)
            message = f"{self._folder}: the rows of step {step} could not be written ({error.strerror or error})"
            raise OSError(error.errno, f"{message}; nothing was stored") from error
        self.last_step, self.rows, self.bytes = step, self.rows + len(batch), self.bytes + path.stat().st_size

    def rows_of(self, step: int) -> pa.RecordBatch | None:
        """Read the rows of a step from disk; None if there are none."""
        for file in step_files(self._folder)[0]:
            if file.first <= step <= file.last:
                return next((batch for batch in self._read(file.path) if step_of(batch) == step), None)
        return None

    def merge(self) -> LogState:
        """Merge the files of single steps into one, and return the state. Raises MemoryCorruptionError for damage."""
        parts = [file.path for file in step_files(self._folder)[0] if file.first == file.last]
        if len(parts) > 1:
            batches = [batch for path in parts for batch in self._read(path)]
            merged = write_rows(self._folder, batches, self._sharding)
            self._read(merged)
            for path in parts:
                path.unlink()
            sync_folder(self._folder)
            self.bytes = sum(file.path.stat().st_size for file in step_files(self._folder)[0])
        return LogState(self.last_step, {self._folder.name: self.rows})

    def restore(self, state: LogState) -> None:
        """Move all rows aside that were stored after ``state``, that of the whole memory; call `open` afterwards.

        Raises MemoryCorruptionError, before it moves anything, if the number of rows up to the state's step differs.
        """
        self._lock = self._lock or lock_shard(self._folder, self._lock_seconds)
        files, left_over = step_files(self._folder)
        rows, wanted = 0, state.rows.get(self._folder.name, 0)
        doomed: list[Path] = []
        cut: list[pa.RecordBatch] = []  # rows to keep of files that also have later steps
        for file in files:
            batches = self._read(file.path) if file.first <= state.step else []
            kept = [batch for batch in batches if step_of(batch) <= state.step]
            rows += sum(map(len, kept))
            if file.last > state.step:
                cut += kept
                doomed.append(file.path)
        if rows != wanted:
            found = f"holds {rows} rows up to step {state.step}, and the snapshot to restore has {wanted}"
            raise MemoryCorruptionError(f"{self._folder}: {found}; restore its files from a backup")
        self._move_aside(left_over)  # first: the file of `cut` may have the name of one
        if cut:
            write_rows(self._folder, cut, self._sharding)
        self._move_aside(doomed)

    def close(self) -> None:
        """Release the folder for other processes."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _read(self, path: Path) -> list[pa.RecordBatch]:
        batches = read_rows(path, self._schema)
        sharding = Sharding.of(batches[0].schema)
        if sharding != self._sharding:
            raise MemoryCorruptionError(f"{path}: was written by {sharding}, and is read by {self._sharding}")
        return batches

    def _move_aside(self, paths: list[Path]) -> None:
        """Take files out of the log, in place of those with the same names that were moved aside before."""
        aside = self._folder / ASIDE
        for path in paths:
            aside.mkdir(exist_ok=True)
            os.replace(path, aside / path.name)
        if paths:
            sync_folder(self._folder)
