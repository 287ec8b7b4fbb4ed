"""File locks: one holder among the processes of all nodes that share a disk.

The system releases a lock however its process ends. Where a whole node is lost, its file server does that, and late: a
lease of NFS 4 lasts about 90 seconds.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from meds_openrlhf.files import open_own

logger = logging.getLogger(__name__)

WAIT_SECONDS = 180.0  # default of meds.lock_seconds: longer than the lease of a lost node
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
WARN_AFTER_SECONDS = 5.0  # an orderly end releases a lock sooner


class NoLocksError(OSError):
    """The file system has no file locks."""


class FolderInUseError(Exception):
    """A folder cannot be locked; the message says why, and what to do."""


def try_lock(file: int, *, shared: bool = False, optional: bool = False) -> bool:
    """Lock an open file (a descriptor) until it is closed; False if another process holds the lock.

    On a file system without locks (Lustre without its mount option, gcsfuse, s3fs) this raises NoLocksError, or counts
    as locked if the lock is ``optional``.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            if optional:
                return True
            raise NoLocksError(error.errno, "the file system has no file locks (flock)") from error
        raise
    return True


def lock_folder(path: Path, seconds: float | None) -> BinaryIO:
    """Open ``path``, the lock of its folder for one writer, and lock it until it is closed, or this process ends.

    Waits up to ``seconds`` (meds.lock_seconds), because a file server releases the lock of a lost node late; with None,
    nothing is locked. The file names its holder. Raises FolderInUseError, and OSError if it cannot be opened.
    """
    file = open_own(path)
    try:
        if seconds is not None:
            _wait(file, path, seconds)
            with suppress(OSError):  # the name is informational; a full disk must not cause a failure here
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except BaseException:
        file.close()
        raise
    return file


def _wait(file: BinaryIO, path: Path, seconds: float) -> None:
    started, warned = time.monotonic(), False
    try:
        while not try_lock(file.fileno()):
            waited = time.monotonic() - started
            holder = os.pread(file.fileno(), 200, 0).decode(errors="replace").strip() or "another process"
            if waited >= seconds:
                raise FolderInUseError(f"is in use by {holder}. Stop it, or name another run_dir.")
            if waited >= WARN_AFTER_SECONDS and not warned:
                logger.warning(
                    "%s: waiting up to %g s (meds.lock_seconds) for this lock, held by %s. A file server releases the "
                    "lock of a lost node late.",
                    *(path, seconds, holder),
                )
                warned = True
            time.sleep(0.1)
    except NoLocksError as error:
        hint = "Mount it with locks, or set meds.lock_seconds: null and let only one run write there."
        raise FolderInUseError(f"{error.strerror}. {hint}") from error
