"""Options of a command line, declared beside the parameters that they set: ``pairs: Annotated[int, option("...")]``."""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints


def option(help: str, metavar: str | None = None, **more: Any) -> dict[str, Any]:
    """The declaration of an option; ``more`` is argparse's, and ``flag`` if that is not the parameter's name."""
    return {"help": help, **more, **({} if metavar is None else {"metavar": metavar})}


def folders(help: str, nargs: int | str | None = "+") -> dict[str, Any]:
    """The declaration of positional folders of runs."""
    return {"help": help, "nargs": nargs, "metavar": "RUN", "type": Path}


def add_options(parser: argparse._ActionsContainer, target: Callable[..., Any], prefix: str = "") -> None:
    """Add the declared options of a function's or a dataclass's parameters; those not given stay out of the result.

    Help texts end with the parameter's default if that is a number, a text, a path or several.
    """
    hints = get_type_hints(target, include_extras=True)
    for name, parameter in inspect.signature(target).parameters.items():
        for declared in getattr(hints[name], "__metadata__", ()):
            given, default = dict(declared), parameter.default
            if name in ("run", "runs"):
                parser.add_argument(name, **given)
                continue
            flag = given.pop("flag", f"--{prefix}{name}".replace("_", "-"))
            if isinstance(default, int | float | str | tuple | Path) and not isinstance(default, bool):
                shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
                given["help"] += f" (default: {shown})"
            parser.add_argument(flag, dest=f"{prefix}{name}", default=argparse.SUPPRESS, **given)


def positive(text: str) -> int:
    """An argument type: an integer above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer above 0")
    return int(text)


def finite(text: str) -> float:
    """An argument type: a finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return number


def above_0(text: str) -> float:
    """An argument type: a number above 0, at most 10^8: no timer takes many more seconds."""
    number = finite(text)
    if not 0 < number <= 1e8:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and at most 10^8")
    return number


Seed = Annotated[int, option("seed of all random draws", "N", type=int)]
ResponseCharacters = Annotated[
    int | None,
    option("leave out the middle of longer responses (default: the judge gets them whole)", "N", type=positive),
]
