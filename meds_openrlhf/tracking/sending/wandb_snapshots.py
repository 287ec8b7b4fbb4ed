"""Snapshots of a run's memory as W&B artifacts: the manifest, and the rows or references to them."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import wandb
from wandb.sdk.artifacts.artifact_manifest_entry import ArtifactManifestEntry

from meds_openrlhf.addresses import without_credentials
from meds_openrlhf.config import MedsSettings
from meds_openrlhf.memory.snapshot import Snapshot, parse_manifest
from meds_openrlhf.paths import MemoryPaths


def read_manifests(paths: MemoryPaths) -> dict[str, bytes]:
    """The content of the existing manifests by name, oldest first."""
    found: list[tuple[int, str, bytes]] = []
    for path in paths.snapshots.glob("*.json"):
        with suppress(FileNotFoundError):  # its checkpoint was removed meanwhile
            found.append((path.stat().st_mtime_ns, path.stem, path.read_bytes()))
    return {name: content for _, name, content in sorted(found)}


def digest_of(manifest: bytes) -> str:
    """Distinguishes manifests of the same name: a resumed run saves the same step again."""
    return hashlib.sha256(manifest).hexdigest()


def artifact_of(name: str, manifest: bytes, paths: MemoryPaths, settings: MedsSettings, run_id: str) -> Any:
    """The artifact of a snapshot. Raises FileNotFoundError if a segment that must be uploaded is missing."""
    snapshot = parse_manifest(manifest, paths.snapshot(name))
    metadata = {
        "rows": snapshot.rows,
        "shards": snapshot.format.shards,
        "layers": snapshot.format.layers,
        "config_hash": snapshot.config_hash,
        "segments": len(snapshot.segments),
        "bytes": sum(segment.bytes for segment in snapshot.segments),
    }
    artifact = wandb.Artifact(f"memory-{run_id}", type="memory", metadata=metadata)
    with artifact.new_file(f"snapshots/{name}.json", mode="wb") as file:
        file.write(manifest)
    if settings.tracking.snapshots == "upload":
        _add_rows(artifact, snapshot, paths)
    elif settings.memory.archive is not None:
        archive = without_credentials(settings.memory.archive)
        _add_reference(artifact, "archive", archive, digest=archive)
    else:
        for segment in snapshot.segments:
            uri = (paths.root / segment.name).resolve().as_uri()
            digest = f"{segment.crc32:08x}-{segment.bytes}"
            _add_reference(artifact, segment.name, uri, digest=digest, size=segment.bytes)
    return artifact


def _add_reference(artifact: Any, name: str, uri: str, **facts: Any) -> None:
    # `add_reference` would require the cloud provider's library for s3:// and gs://.
    artifact.manifest.add_entry(ArtifactManifestEntry(path=name, ref=uri, **facts))


def _add_rows(artifact: Any, snapshot: Snapshot, paths: MemoryPaths) -> None:
    for segment in snapshot.segments:
        path: Path = paths.root / segment.name
        if path.stat().st_size == segment.bytes:
            artifact.add_file(str(path), name=segment.name, policy="immutable", skip_cache=True)
        else:  # rows were appended since
            with path.open("rb") as source, artifact.new_file(segment.name, mode="wb") as target:
                target.write(source.read(segment.bytes))
