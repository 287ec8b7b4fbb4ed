"""How a command ends: what a user can correct, and readers that have seen enough, as ``| head``."""

from __future__ import annotations

import errno
import os
import select
from typing import TextIO

# What a user can correct: a full disk or quota, a folder that cannot be written to.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def silence_if_closed(stream: TextIO) -> bool:
    """Whether nobody reads from the pipe that ``stream`` writes to any more.

    What it still holds then goes nowhere, so that the interpreter does not complain when it flushes at its end.
    """
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    is_closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return is_closed
