"""The memory's own error; light, so that the command line can know it without loading the memory."""

from __future__ import annotations


class MemoryCorruptionError(RuntimeError):
    """A file of the memory does not hold what was written there; the message names the file."""
