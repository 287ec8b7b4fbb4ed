"""What happens when whoever reads the output of a command has seen enough, as in ``meds memory inspect RUN | head``."""

from __future__ import annotations

import os
import select
from typing import TextIO


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
