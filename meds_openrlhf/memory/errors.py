"""The memory's own errors; light, so that the command line can know them without loading the memory."""

from __future__ import annotations


class MemoryCorruptionError(RuntimeError):
    """A file of the memory does not hold what was written there; the message names the file."""


class MemoryLostError(RuntimeError):
    """Rows that were acknowledged cannot be reached any more; the message says whose they are and what to do."""


class MemoryBusyError(RuntimeError):
    """Another process writes to the same folder; the message names both."""
