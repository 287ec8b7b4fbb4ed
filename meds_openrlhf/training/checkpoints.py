"""Which checkpoint a run goes on from: the newest one that is whole.

A checkpoint is whole when its marker is there, which is written last, and every file that the marker lists is there
with its size. OpenRLHF removes old checkpoints file by file, so a folder alone proves nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from meds_openrlhf.paths import RunPaths, write_atomically

ROLES = ("_actor", "_critic")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: its tag, and the training step after which it was saved."""

    tag: str
    step: int


def mark_complete(paths: RunPaths, tag: str, step: int) -> None:
    """Write the marker of a checkpoint whose parts are all on disk."""
    files = {
        str(file.relative_to(paths.checkpoints)): file.stat().st_size
        for role in ROLES
        for file in sorted((paths.checkpoints / role / tag).rglob("*"))
        if file.is_file()
    }
    write_atomically(paths.complete / tag, json.dumps({"step": step, "files": files}) + "\n")


def newest_complete(paths: RunPaths) -> Checkpoint | None:
    """The newest whole checkpoint; of one step, a regular one before the best one's. None where there is none."""
    found = [
        (step, not marker.name.startswith("best_"), marker.name)
        for marker in paths.complete.glob("*global_step*")
        if (step := _step_of_whole(paths, marker)) is not None
    ]
    if not found:
        return None
    step, _, tag = max(found)
    return Checkpoint(tag, step)


def _step_of_whole(paths: RunPaths, marker: Path) -> int | None:
    try:
        content = json.loads(marker.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    for name, size in content["files"].items():
        file = paths.checkpoints / name
        if not file.is_file() or file.stat().st_size != size:
            return None
    return int(content["step"]) if content["files"] else None


def remove_stale_markers(paths: RunPaths, saved: set[str]) -> None:
    """Remove the markers of checkpoints that are not in ``saved`` any more."""
    for marker in paths.complete.glob("*global_step*"):
        if marker.name not in saved:
            marker.unlink()


def saved_tags(paths: RunPaths) -> set[str]:
    """Tags of all checkpoints of the policy that have a folder, whole or not."""
    folder = paths.policy_checkpoints
    return {entry.name for entry in folder.iterdir() if entry.is_dir()} if folder.exists() else set()


def point_latest_to(paths: RunPaths, tag: str) -> None:
    """Make DeepSpeed, which loads what a role's file ``latest`` names, take ``tag`` for every role."""
    for role in ROLES:
        if (paths.checkpoints / role / tag).is_dir():
            write_atomically(paths.checkpoints / role / "latest", tag)
