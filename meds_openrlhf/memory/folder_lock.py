"""A lock that allows one writer per shard folder; the system releases it when the process dies for any reason."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path

from meds_openrlhf.memory.errors import MemoryBusyError

LOCK_NAME = ".lock"


class FolderLock:
    """A lock from `acquire` until `release`, garbage collection of the object, or the end of the process."""

    def __init__(self, folder: Path, patience_seconds: float = 10.0) -> None:
        self._folder = folder
        self._patience = patience_seconds
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or do nothing if it is taken already; waits briefly for a predecessor that is exiting.

        Raises MemoryBusyError if another process holds the lock, and OSError if the folder is not writable.
        """
        if self._descriptor is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + self._patience
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
                os.close(descriptor)
                raise MemoryBusyError(f"{self._folder}: is being written by {holder}; stop it, or name another run_dir")
            time.sleep(0.1)
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # the name is informational; a full disk must not cause a failure here
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock, or do nothing if it is not taken."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
