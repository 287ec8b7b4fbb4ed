"""How a run ends that the user did not mean to end. Light: the command line imports it."""

from __future__ import annotations


class RunLostError(RuntimeError):
    """A part of the run is gone that it cannot go on without; what it had saved can be resumed."""


def innermost(error: BaseException) -> BaseException:
    """The error itself: one from a Ray worker comes wrapped in its traceback, once per worker that it passed."""
    while isinstance(getattr(error, "cause", None), BaseException):
        error = error.cause  # type: ignore[attr-defined]
    return error
