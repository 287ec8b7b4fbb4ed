"""File locks: one holder among the processes of all nodes that share a disk.

The system releases a lock however its process ends. Where a whole node is lost, its file server does that, and late: a
lease of NFS 4 lasts about 90 seconds.
"""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Callable

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
WARN_AFTER_SECONDS = 5.0  # an orderly end releases a lock sooner


class NoLocksError(OSError):
    """The file system has no file locks."""


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


def wait_for_lock(file: int, seconds: float, warn: Callable[[], None]) -> bool:
    """Like `try_lock`, but wait up to ``seconds`` for the holder, and call ``warn`` once if that takes a while."""
    started, warned = time.monotonic(), False
    while not try_lock(file):
        waited = time.monotonic() - started
        if waited >= seconds:
            return False
        if waited >= WARN_AFTER_SECONDS and not warned:
            warn()
            warned = True
        time.sleep(0.1)
    return True
