"""How the memory's inner loops are compiled: without the interpreter's lock, and kept on the disk between starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba  # type: ignore[import-untyped]

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """``function`` compiled by numba at its first call; a division by zero gives infinity or NaN, as in numpy.

    The result is cached beside the module or in the user's cache folder; where neither can be written, it is compiled
    anew by every process.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        decorated: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "no locator available": nowhere to keep it
        decorated = numba.njit(**options)(function)
    return decorated
