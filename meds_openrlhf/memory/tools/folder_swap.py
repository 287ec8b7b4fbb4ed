"""Putting a new memory in the place of an old one so that a process may die at any instant.

    memory            memory.compact
    1  the old one    being built, then whole and on the disk
    2  missing        whole                the old one is memory.old
    3  the new one    missing              memory.old is being removed

In 1 the memory is what it was, and memory.compact is rubbish. 2 lasts from one rename to the next; nothing but the
missing name is wrong, for memory.compact was on the disk before it began: the second rename is made up for. In 3 the
new memory is whole, and memory.old is rubbish. Each rename is durable before the next, so the disk knows no other
states. A marker in memory.old, written in 2 and removed last, says that it is ours: beside a memory, a folder of that
name without one is somebody's backup.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.tools.stored_memory import compacted_folder, replaced_folder
from meds_openrlhf.paths import RunPaths, sync_folder, write_atomically

MARKER = ".replaced-by-compaction"


def put_in_place(root: Path) -> None:
    """Swap: the memory at ``root`` becomes the one that lies, whole and durable, in its building site."""
    root.rename(replaced_folder(root))
    sync_folder(root.parent)
    _finish(root)


def settle(root: Path) -> None:
    """Finish a swap that was interrupted. Raises ConfigError where what is there cannot be that."""
    old, new = replaced_folder(root), compacted_folder(root)
    if not old.exists():
        return
    if root.exists() and new.exists():
        mend = f"lies beside {old.name} and {new.name}: no telling which holds its rows; move two of them away"
        raise ConfigError("RUN", str(root), mend)
    if root.exists() and any(old.iterdir()) and not (old / MARKER).exists():
        raise ConfigError("RUN", str(old), "is where a compaction would put the old memory; move that folder away")
    if not root.exists() and not new.exists():
        raise ConfigError("RUN", str(root), f"is missing, and there is only {old.name}; rename that to {root.name}")
    _finish(root)


def clear_building_site(site: Path) -> None:
    """Remove what a compaction had begun to build."""
    if site.exists():
        shutil.rmtree(site)
    site.mkdir()


@contextmanager
def sole_driver(run: RunPaths | None, root: Path) -> Iterator[None]:
    """Hold the run's folder as a training process does. Raises ConfigError where one has it."""
    if run is None:
        yield
        return
    with run.lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            mend = f"is in use: the run in {run.root} is going on; compact when it has stopped"
            raise ConfigError("RUN", str(root), mend) from None
        yield


def _finish(root: Path) -> None:
    """From state 2 or 3 to the end."""
    old = replaced_folder(root)
    if not root.exists():
        write_atomically(old / MARKER, "")
        compacted_folder(root).rename(root)
        sync_folder(root.parent)
    for entry in old.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != MARKER:
            entry.unlink()
    (old / MARKER).unlink(missing_ok=True)
    old.rmdir()
    sync_folder(root.parent)
