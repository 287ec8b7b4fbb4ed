"""Snapshots of a run's memory as W&B artifacts: the manifest, and the rows or references to them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb
from wandb.sdk.artifacts.artifact_manifest_entry import ArtifactManifestEntry

from meds_openrlhf.memory.segment import SegmentState
from meds_openrlhf.memory.snapshot import Snapshot, parse_manifest
from meds_openrlhf.paths import MemoryPaths
from meds_openrlhf.tracking.sending.destinations import Destinations


@dataclass(frozen=True)
class Manifest:
    """A snapshot's manifest as it was read; ``digest`` distinguishes versions with the same name."""

    name: str
    content: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.content).hexdigest()


def manifests_in(paths: MemoryPaths) -> Iterator[Manifest]:
    """Yield the existing manifests, oldest first."""
    if not paths.snapshots.is_dir():
        return
    for path in sorted(paths.snapshots.glob("*.json"), key=_modified):
        try:
            yield Manifest(path.stem, path.read_bytes())
        except FileNotFoundError:  # its checkpoint was removed meanwhile
            continue


def as_seen(paths: MemoryPaths) -> list[tuple[str, int, int]]:
    """A fingerprint of all manifests (names, times, sizes), without reading them."""
    if not paths.snapshots.is_dir():
        return []
    seen = []
    for entry in os.scandir(paths.snapshots):
        with suppress(FileNotFoundError):  # removed meanwhile
            stat = entry.stat()
            seen.append((entry.name, stat.st_mtime_ns, stat.st_size))
    return sorted(seen)


def _modified(path: Path) -> tuple[int, str]:
    return (path.stat().st_mtime_ns if path.exists() else 0), path.name


def artifact_of(manifest: Manifest, paths: MemoryPaths, to: Destinations, run_id: str) -> Any:
    """The artifact of a snapshot. Raises FileNotFoundError if a segment that must be uploaded is missing."""
    snapshot = parse_manifest(json.loads(manifest.content), paths.snapshot(manifest.name))
    metadata = {
        "rows": snapshot.rows,
        "shards": snapshot.format.shards,
        "layers": snapshot.format.layers,
        "config_hash": snapshot.config_hash,
        "segments": len(snapshot.segments),
        "bytes": sum(segment.bytes for segment in snapshot.segments),
    }
    artifact = wandb.Artifact(f"memory-{run_id}", type="memory", metadata=metadata)
    with artifact.new_file(f"snapshots/{manifest.name}.json", mode="wb") as file:
        file.write(manifest.content)
    if to.snapshots == "upload":
        _add_files(artifact, snapshot, paths)
    elif to.archive is not None:
        # add_reference would require the cloud provider's library for s3:// and gs://.
        artifact.manifest.add_entry(ArtifactManifestEntry(path="archive", ref=to.archive, digest=to.archive))
    else:
        for segment in snapshot.segments:
            uri = (paths.root / segment.name).resolve().as_uri()
            artifact.manifest.add_entry(_reference(segment, uri))
    return artifact


def _reference(segment: SegmentState, uri: str) -> ArtifactManifestEntry:
    digest = f"{segment.crc32:08x}-{segment.bytes}"
    return ArtifactManifestEntry(path=segment.name, ref=uri, digest=digest, size=segment.bytes)


def _add_files(artifact: Any, snapshot: Snapshot, paths: MemoryPaths) -> None:
    for segment in snapshot.segments:
        path = paths.root / segment.name
        if path.stat().st_size == segment.bytes:
            artifact.add_file(str(path), name=segment.name, policy="immutable", skip_cache=True)
        else:  # rows were appended since
            with path.open("rb") as source, artifact.new_file(segment.name, mode="wb") as target:
                target.write(source.read(segment.bytes))
