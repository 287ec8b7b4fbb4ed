"""Which checkpoint a run goes on from: the newest one that is whole."""

from __future__ import annotations

import re

from meds_openrlhf.paths import RunPaths, write_atomically

_TAG = re.compile(r"(best_)?global_step(\d+)")


def newest_complete(paths: RunPaths) -> tuple[str, int] | None:
    """Tag and step of the newest checkpoint whose policy, data state and memory are all on disk."""
    found = []
    for marker in paths.complete.glob("*"):
        tag = _TAG.fullmatch(marker.name)
        if tag and (paths.policy_checkpoints / marker.name).is_dir():
            found.append((int(tag[2]), tag[1] is None, marker.name))
    if not found:
        return None
    step, _, name = max(found)  # of one step, the regular checkpoint before the best one
    return name, step


def point_latest_to(paths: RunPaths, tag: str) -> None:
    """Make DeepSpeed, which loads what its file ``latest`` names, take ``tag``."""
    write_atomically(paths.policy_checkpoints / "latest", tag)
