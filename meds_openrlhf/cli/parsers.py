"""What the parsers of all subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from meds_openrlhf.config import ConfigError
from meds_openrlhf.files import SIZE_FACTOR
from meds_openrlhf.options import above_0


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
