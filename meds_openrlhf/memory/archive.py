"""Snapshots on any file system that Arrow supports (S3, GCS, HDFS, NFS), so nodes without a shared disk can resume.

Each segment is stored once, under a name that contains its length and checksum, and never changes. A manifest lists the
segments of a snapshot and is written last. Segments that no manifest lists are removed afterwards.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from meds_openrlhf.addresses import names_a_user, without_credentials
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import write_atomically
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.segment import SegmentState, begins_with
from meds_openrlhf.memory.snapshot import Snapshot, parse_manifest, read_snapshot, write_manifest
from meds_openrlhf.paths import SNAPSHOT_NAME, MemoryPaths


class Archive:
    """Snapshots under ``root`` in a file system: ``snapshots/NAME.json`` and ``segments/...``."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")

    @staticmethod
    def at(uri: str) -> Archive:
        """Open the archive at a URI (``s3://bucket/runs/my-run``) or an absolute path.

        Raises ConfigError for any other text.
        """
        try:
            filesystem, root = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError) as error:
            shown = without_credentials(uri)
            reason = str(error).partition("\n")[0].replace(uri, shown)  # without a JVM, HDFS lists all folders
            if names_a_user(reason):  # the message contains the address in another form
                reason = type(error).__name__
            hint = f"is no file system's address ({reason}); use s3://bucket/folder or the like"
            raise ConfigError("meds.memory.archive", shown, hint) from error
        return Archive(filesystem, root)

    def store(self, paths: MemoryPaths, states: list[SegmentState]) -> None:
        """Copy segments that the archive lacks; no writer may append to them meanwhile."""
        self._fs.create_dir(f"{self._root}/segments", recursive=True)
        for state in states:
            target = self._segment(state)
            if self._size(target) != state.bytes:
                self._write(target, (paths.root / state.name).read_bytes()[: state.bytes])

    def fetch(self, paths: MemoryPaths, states: list[SegmentState]) -> None:
        """Fetch segments that are missing in the folder or have different content there.

        Raises MemoryCorruptionError if the archive lacks one of them. If the run continued on another node, this node
        may still have old files; they are overwritten.
        """
        for state in states:
            path = paths.root / state.name
            if path.exists() and begins_with(path, state):
                continue
            try:
                content = self._fs.open_input_file(self._segment(state)).read()
            except (OSError, pa.ArrowException) as error:
                raise MemoryCorruptionError(f"{self._segment(state)}: a snapshot names it, but {error}") from error
            write_atomically(path, content)

    def require_usable(self, fresh: bool) -> None:
        """Raise ConfigError if the archive is not writable, or if a ``fresh`` run finds another run's snapshots."""
        try:
            self._fs.create_dir(f"{self._root}/snapshots", recursive=True)
            self._write(f"{self._root}/writable", b"")
            snapshots = self._files("snapshots")
        except (pa.ArrowException, OSError) as error:
            raise ConfigError("meds.memory.archive", self._root, f"cannot be written to ({error})") from error
        if fresh and snapshots:
            hint = "holds another run's snapshots; name another folder, or --resume that run"
            raise ConfigError("meds.memory.archive", self._root, hint)

    def commit(self, name: str, snapshot: Snapshot) -> None:
        """Publish a manifest; its segments must be stored already."""
        self._fs.create_dir(f"{self._root}/snapshots", recursive=True)
        self._write(self._manifest(name), write_manifest(snapshot).encode())

    def read(self, name: str) -> Snapshot | None:
        """Return the snapshot called ``name``, or None if there is none."""
        path = self._manifest(name)
        return None if self._size(path) is None else self._parse(path)

    def prune(self, keep: set[str]) -> None:
        """Remove manifests whose name is not in ``keep``, then segments that no manifest lists."""
        manifests = self._files("snapshots")
        for path in manifests:
            if Path(path).stem not in keep:
                self._fs.delete_file(path)
        kept = [self._parse(path) for path in manifests if Path(path).stem in keep]
        named = {self._segment(state) for snapshot in kept for state in snapshot.segments}
        for path in self._files("segments"):
            if path not in named:
                self._fs.delete_file(path)

    def _segment(self, state: SegmentState) -> str:
        name = state.name.removesuffix(".arrow").replace("/", "-")
        return f"{self._root}/segments/{name}-{state.bytes}-{state.crc32:08x}.arrow"

    def _manifest(self, name: str) -> str:
        if not SNAPSHOT_NAME.fullmatch(name):
            raise ValueError(f"snapshot name: {name!r} may hold only letters, digits and underscores")
        return f"{self._root}/snapshots/{name}.json"

    def _parse(self, path: str) -> Snapshot:
        return parse_manifest(self._fs.open_input_file(path).read(), path)

    def _size(self, path: str) -> int | None:
        found = self._fs.get_file_info(path)
        return found.size if found.type == fs.FileType.File else None

    def _files(self, folder: str) -> list[str]:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        return [entry.path for entry in self._fs.get_file_info(selector) if entry.type == fs.FileType.File]

    def _write(self, path: str, content: bytes) -> None:
        """Write a file atomically: an object store publishes on close, a file system on rename."""
        temporary = f"{path}.tmp"
        with self._fs.open_output_stream(temporary) as stream:
            stream.write(content)
        self._fs.move(temporary, path)


def archive_snapshot(uri: str, paths: MemoryPaths, name: str) -> None:
    """Copy a local snapshot (segments and manifest) to the archive at ``uri``, unless the archive has it already."""
    archive = Archive.at(uri)
    if archive.read(name) is not None:
        return
    snapshot = read_snapshot(paths.snapshot(name))
    archive.store(paths, snapshot.segments)
    archive.commit(name, snapshot)
