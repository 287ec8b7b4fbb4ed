"""Compiles the memory's inner loops with numba: they release the GIL and are cached on disk between starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_interpreted = False


def interpret() -> None:
    """Make `compiled` return functions unchanged from now on, for a process with little work.

    Compiling takes ten seconds if the cache is empty. Functions that are imported already are not affected.
    """
    global _interpreted
    _interpreted = True


def compiled(function: Function) -> Function:
    """Compile ``function`` with numba at its first call; division by zero gives infinity or NaN, as in numpy.

    The result is cached next to the module or in the user's cache folder. If neither is writable, every process
    compiles it again.
    """
    if _interpreted:
        return function
    import numba  # type: ignore[import-untyped]

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        decorated: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "no locator available": no cache folder is writable
        decorated = numba.njit(**options)(function)
    return decorated
