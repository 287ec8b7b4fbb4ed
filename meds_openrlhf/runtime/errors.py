"""Errors that end a run unintentionally, in a light module that the command line can import."""

from __future__ import annotations


class RunLostError(RuntimeError):
    """An essential part of the run is lost; the run can be resumed from its last checkpoint."""


def innermost(error: BaseException) -> BaseException:
    """Return the original error; Ray wraps an error once for each worker that it passes through."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause  # type: ignore[attr-defined]
    return error
