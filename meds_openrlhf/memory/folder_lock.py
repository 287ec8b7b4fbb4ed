"""A lock that allows one writer per shard folder."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path

from meds_openrlhf.locks import NoLocksError, wait_for_lock
from meds_openrlhf.memory.errors import MemoryBusyError

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"
WAIT_SECONDS = 180.0  # default of meds.lock_seconds: longer than the lease of a lost node


class FolderLock:
    """A lock from `acquire` until `release`, garbage collection of the object, or the end of the process.

    With ``wait_seconds`` None it locks nothing, for file systems that have no locks.
    """

    def __init__(self, folder: Path, wait_seconds: float | None = WAIT_SECONDS) -> None:
        self._folder = folder
        self._wait_seconds = wait_seconds
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or do nothing if it is taken already; waits for a predecessor that is ending or lost.

        Raises MemoryBusyError if another process keeps the lock or the file system has none, and OSError if the folder
        is not writable.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._descriptor is not None or self._wait_seconds is None:
            return
        descriptor = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._lock(descriptor, self._wait_seconds)
        except BaseException:
            os.close(descriptor)
            raise
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

    def _lock(self, descriptor: int, seconds: float) -> None:
        def warn() -> None:
            logger.warning(
                "%s: waiting up to %g s (meds.lock_seconds) for its lock, which %s holds; a file server releases that "
                "of a lost node late",
                *(self._folder, seconds, _holder(descriptor)),
            )

        try:
            if not wait_for_lock(descriptor, seconds, warn):
                raise MemoryBusyError(
                    f"{self._folder}: is being written by {_holder(descriptor)}; stop it, or name another run_dir"
                )
        except NoLocksError as error:
            raise MemoryBusyError(
                f"{self._folder}: {error.strerror}; mount it with them, or set meds.lock_seconds: null and take care "
                "that no two runs write there"
            ) from error


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
