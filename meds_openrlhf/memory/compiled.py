"""How the memory's inner loops are compiled: without the interpreter's lock, and kept on the disk between starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_interpreted = False


def interpret() -> None:
    """From now on `compiled` leaves functions to the interpreter: for a process with little to do.

    Compiling takes ten seconds where no earlier process has done it. Has no effect on functions imported before.
    """
    global _interpreted
    _interpreted = True


def compiled(function: Function) -> Function:
    """``function`` compiled by numba at its first call; a division by zero gives infinity or NaN, as in numpy.

    The result is cached beside the module or in the user's cache folder; where neither can be written, it is compiled
    anew by every process.
    """
    if _interpreted:
        return function
    import numba  # type: ignore[import-untyped]

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        decorated: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "no locator available": nowhere to keep it
        decorated = numba.njit(**options)(function)
    return decorated
