"""Finds the complete checkpoints of a run; a run resumes from the newest.

A checkpoint is complete if its marker exists, which is written last, and every file that the marker lists exists with
the listed size. OpenRLHF removes old checkpoints file by file, so the existence of a folder is not sufficient.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from meds_openrlhf.files import MOST_TEXT, read_file, write_atomically
from meds_openrlhf.json_text import parse_json
from meds_openrlhf.paths import BEST, MOST_STEPS, TAG, RunPaths, entries_of, inside, leads_out

ROLES = ("_actor", "_critic")
# DeepSpeed's optimizer files, one per rank: zero_pp_rank_3_mp_rank_00_optim_states.pt
OPTIMIZER_PART = re.compile(r"(bf16_)?zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its tag, and the training step after which it was saved."""

    tag: str
    step: int


def mark_complete(paths: RunPaths, tag: str, step: int) -> None:
    """Write the marker of a checkpoint; all of its parts must be on disk."""
    parts = [*(_part(paths, role, tag) for role in ROLES), paths.diversity(tag)]
    files = {
        str(file.relative_to(paths.checkpoints)): file.stat().st_size
        for part in parts
        for file in (sorted(part.rglob("*")) if part.is_dir() else [part])
        if file.is_file()
    }
    content = {"step": step, "files": files}
    write_atomically(paths.complete / tag, json.dumps(content) + "\n")


def whole_checkpoints(paths: RunPaths) -> list[Checkpoint]:
    """Return all complete checkpoints, newest last; for equal steps, regular checkpoints follow best checkpoints."""
    found = [whole for marker in paths.markers() if (whole := _whole(paths, marker)) is not None]
    return sorted(found, key=lambda point: (point.step, not point.tag.startswith(BEST), point.tag))


def newest_complete(paths: RunPaths) -> Checkpoint | None:
    """Return the newest complete checkpoint, or None; for equal steps, prefer a regular to a best checkpoint."""
    return next(reversed(whole_checkpoints(paths)), None)


def _whole(paths: RunPaths, marker: Path) -> Checkpoint | None:
    try:
        content = parse_json(read_file(marker, MOST_TEXT))
        step, files = content["step"], content["files"]
        if any(leads_out(paths.checkpoints, name) for name in files):
            return None
        sizes = {name: (paths.checkpoints / name).stat().st_size for name in files}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no marker of ours, or a file is missing
        return None
    is_step = type(step) is int and 0 <= step < MOST_STEPS
    return Checkpoint(marker.name, step) if is_step and files and sizes == files else None


def remove_stale(paths: RunPaths, saved: set[str]) -> None:
    """Remove markers and moments of checkpoints that are not in ``saved``."""
    for marker in paths.markers():
        if marker.name not in saved:
            marker.unlink()
    for file in entries_of(paths.root, paths.diversity_folder):
        if file.suffix == ".npz" and file.stem not in saved:
            file.unlink()


def remove_partial(paths: RunPaths) -> None:
    """Remove the folders of saves that were interrupted: OpenRLHF would count them, and keep fewer complete ones.

    Without a single marker nothing is removed, because then it is the markers that are missing.
    """
    marked = {marker.name for marker in paths.markers()}
    for role in ROLES if marked else ():
        for folder in entries_of(paths.root, inside(paths.root, f"checkpoints/{role}")):
            if TAG.fullmatch(folder.name) and folder.name not in marked:
                shutil.rmtree(folder, ignore_errors=True)


def saved_tags(paths: RunPaths) -> set[str]:
    """Return the tags of all checkpoints of the policy that have a folder, complete or not."""
    folder = paths.policy_checkpoints
    return {entry.name for entry in folder.iterdir() if entry.is_dir()} if folder.exists() else set()


def point_latest_to(paths: RunPaths, tag: str) -> None:
    """Write ``tag`` to the file ``latest`` of every role, which names the checkpoint that DeepSpeed loads."""
    for role in ROLES:
        if _part(paths, role, tag).is_dir():
            write_atomically(_part(paths, role, "latest"), tag)


def _part(paths: RunPaths, role: str, name: str) -> Path:
    return inside(paths.root, f"checkpoints/{role}/{name}")


def type_saved(paths: RunPaths, tag: str) -> str | None:
    """Return the type that the policy of the checkpoint ``tag`` was trained in, bf16 or fp32; None if no file tells."""
    parts = _optimizer_parts(_part(paths, ROLES[0], tag))
    return ("bf16" if parts[0][1] else "fp32") if parts else None


def ranks_saved(paths: RunPaths, tag: str) -> dict[str, int]:
    """Return how many ranks of policy and critic saved their part of the optimizer in the checkpoint ``tag``."""
    folders = {name: _part(paths, role, tag) for name, role in zip(("policy", "critic"), ROLES)}
    counts = {role: len(_optimizer_parts(folder)) for role, folder in folders.items()}
    return {role: count for role, count in counts.items() if count}


def _optimizer_parts(folder: Path) -> list[re.Match[str]]:
    """The names of the files of a role's checkpoint in which its ranks saved the optimizer."""
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    return [part for part in map(OPTIMIZER_PART.fullmatch, names) if part]
