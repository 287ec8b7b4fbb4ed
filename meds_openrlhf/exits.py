"""Helpers for the end of a command: errors that a user can correct, and readers that close the pipe (``| head``)."""

from __future__ import annotations

import errno
import os
import select
from typing import TextIO

# Errors that a user can correct: a full disk or quota, a folder that is not writable; and in a command's own process,
# the path of a folder where a file belongs, or the other way round.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
PATH_ERRORS = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


def silence_if_closed(stream: TextIO) -> bool:
    """Return whether the reader of the pipe of ``stream`` has closed it; if so, discard further output.

    Buffered output then goes to the null device, so that the interpreter's flush at exit raises no error.
    """
    try:
        descriptor = stream.fileno()
    except OSError:  # not a file: a caller of ours reads what is printed
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    is_closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    return is_closed
