"""A memory as it lies on the disk, opened to be read: no lock is taken, nothing is changed, and its run may go on.

What a run appends meanwhile may be seen or not; a batch that is half written is not there yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.rows import log_schema
from meds_openrlhf.memory.segment_index import read_index, scan_segment
from meds_openrlhf.memory.snapshot import MemoryFormat, read_format
from meds_openrlhf.memory.stored_segment import StoredSegment
from meds_openrlhf.paths import MemoryPaths, RunPaths, segments_in


@dataclass(frozen=True)
class StoredMemory:
    """The files of one memory; ``run`` is the run that it belongs to, None for a folder that stands alone."""

    paths: MemoryPaths
    format: MemoryFormat
    run: RunPaths | None

    @property
    def schema(self) -> pa.Schema:
        """The columns of its segments."""
        return log_schema(self.format.layers)

    def segment_files(self) -> dict[int, list[Path]]:
        """The segments in every shard's folder, oldest first, by the shard's number."""
        return {number: segments_in(folder) for number, folder in sorted(self.paths.shard_folders().items())}

    def manifests(self) -> list[Path]:
        """The manifests of its snapshots, step 5 before step 10."""
        return sorted(self.paths.snapshots.glob("*.json"), key=lambda path: (len(path.stem), path.stem))

    def segments(self) -> list[StoredSegment]:
        """All segments that hold a whole batch, in the order in which the log has them.

        Raises MemoryCorruptionError where one is damaged.
        """
        found = [self._opened(path) for paths in self.segment_files().values() for path in paths]
        present = [segment for segment in found if segment is not None]
        return sorted(present, key=lambda segment: (segment.index.batches[0].step, segment.name))

    def rows_by_step(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Each step that stored rows and its rows of all shards, in the order of ``sample``; one step at a time.

        Raises MemoryCorruptionError where a batch is damaged.
        """
        places: dict[int, list[tuple[StoredSegment, int]]] = {}
        for segment in self.segments():
            for number, entry in enumerate(segment.index.batches):
                places.setdefault(entry.step, []).append((segment, number))
        for step in sorted(places):
            rows = pa.concat_batches([segment.read(number) for segment, number in places[step]])
            order = np.argsort(rows.column("sample").to_numpy(), kind="stable")
            yield step, rows.take(pa.array(order))

    def _opened(self, path: Path) -> StoredSegment | None:
        """None for one without a whole batch, or that the run has just removed."""
        try:
            index = read_index(path)
            verified = index is None
            index = index or scan_segment(path, self.schema)
        except FileNotFoundError:
            return None
        if index is None or not index.batches:
            return None
        return StoredSegment(path, index, self.schema, verified=verified)


def memory_root(folder: Path) -> Path:
    """The memory's folder, given it or its run's; it need not be there."""
    is_memory = MemoryPaths(folder).format.exists() or (not folder.exists() and replaced_folder(folder).exists())
    return folder if is_memory else RunPaths(folder).memory.root


def run_of(root: Path) -> RunPaths | None:
    """The run that a memory's folder belongs to."""
    run = RunPaths(root.absolute().parent)
    return run if run.memory.root.name == root.name and (run.config.exists() or run.lock.exists()) else None


def open_memory(folder: Path) -> StoredMemory:
    """The memory in ``folder``, a run's or the memory's own.

    Raises ConfigError where there is none or one of another format, MemoryCorruptionError where that cannot be read.
    """
    paths = MemoryPaths(memory_root(folder))
    held = read_format(paths)
    if held is None:
        raise ConfigError("RUN", str(folder), _why_none(folder, paths.root))
    if held.layers < 1:
        raise MemoryCorruptionError(f"{paths.format}: gives {held.layers!r} as the number of layers")
    return StoredMemory(paths, held, run_of(paths.root))


def _why_none(folder: Path, root: Path) -> str:
    if not root.exists() and replaced_folder(root).exists():
        return f"was left by a compaction that was interrupted; finish it: meds memory compact {folder}"
    problem = "holds no memory" if folder.exists() else "does not exist"
    return f"{problem}; name a run's folder, or a memory's (the one with format.json)"


def replaced_folder(root: Path) -> Path:
    """Where a compaction puts the memory that it replaces, for the moment."""
    return _beside(root, "old")


def compacted_folder(root: Path) -> Path:
    """Where a compaction builds the memory that is to take the place."""
    return _beside(root, "compact")


def _beside(root: Path, suffix: str) -> Path:
    real = root.resolve()  # on its own file system, so that a rename is all it takes
    return real.with_name(f"{real.name}.{suffix}")
