"""Errors of the memory, in a light module so that the command line can import them without loading the memory."""

from __future__ import annotations


class MemoryCorruptionError(RuntimeError):
    """A file of the memory is damaged or missing; the message names the file."""


class MemoryBusyError(RuntimeError):
    """Another process writes to the same folder; the message names the folder and the process."""
