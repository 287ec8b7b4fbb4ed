"""What parsers of command lines share.

Options are declared beside the parameters that they set: ``pairs: Annotated[int, option("...")]``.
"""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from meds_openrlhf.config import ConfigError
from meds_openrlhf.files import SIZE_FACTOR

Trainer = Literal["meds", "verl", "trl"]  # whose data sets `report.export` writes


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


def add_export_for(parser: argparse._ActionsContainer) -> None:
    """Add ``--export-for``, a `Trainer`."""
    kinds = "what the exported file is for: lines of JSON for meds and trl, Parquet for verl (default: meds)"
    parser.add_argument("--export-for", choices=get_args(Trainer), help=kinds)


def export_for(arguments: argparse.Namespace) -> Trainer:
    """The trainer of ``--export-for``. Raises ConfigError if nothing is exported for it."""
    if arguments.export_for is not None and arguments.export is None:
        raise ConfigError("--export-for", arguments.export_for, "applies only with --export. Add it.")
    trainer: Trainer = arguments.export_for or "meds"
    return trainer


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


def add_command(
    subparsers: Any, name: str, run: Callable[..., int], document: str | None, takes_overrides: bool = False
) -> argparse.ArgumentParser:
    """Add a command; the first line of ``document``, after any colon, is its help, and the rest its description."""
    summary, _, description = (document or "").partition("\n\n")
    words = {"help": summary.rpartition("`: ")[2].removesuffix("."), "description": " ".join(description.split())}
    parser: argparse.ArgumentParser = subparsers.add_parser(name, **words)
    parser.set_defaults(run=run, takes_overrides=takes_overrides)
    factor = "read files up to N times larger than the limits in SECURITY.md"
    parser.add_argument(SIZE_FACTOR, metavar="N", type=above_0, default=1.0, help=factor)
    return parser


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option without which a model with code of its own is refused."""
    parser.add_argument("--trust-remote-code", action="store_true", help="let models run Python code of their own")


def pairs_of(flag: str, words: Sequence[str] | None, form: str) -> dict[str, str]:
    """The pairs that were given with ``flag``, of a ``form`` such as KEY=VALUE. Raises ConfigError for other words."""
    pairs: dict[str, str] = {}
    for word in words or ():
        key, _, value = word.partition("=")
        if not key or not value or key in pairs:
            raise ConfigError(flag, word, f"must be {form}, with a different {form.partition('=')[0]} each time.")
        pairs[key] = value
    return pairs
