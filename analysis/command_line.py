"""Shared code of all scripts' command lines: exit codes and common arguments.

A full disk and other errors that a user can fix give one line on stderr and exit code 2; a closed pipe is not an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.exits import DISK_ERRORS, silence_if_closed
from meds_openrlhf.memory.errors import MemoryCorruptionError

INTERRUPTED = 130


def exit_code_of(script: Callable[[], None]) -> int:
    """Run ``script`` and return the process's exit code; other errors are defects and propagate."""
    try:
        script()
        sys.stdout.flush()  # a BrokenPipeError must surface inside this try
    except (ConfigError, MemoryCorruptionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        if not silence_if_closed(sys.stdout):
            raise
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def positive(text: str) -> int:
    """An argument type: an integer above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer above 0")
    return int(text)


def add_drawing_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--seed`` and ``--response-characters``."""
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws; default: 0")
    parser.add_argument(
        "--response-characters",
        type=positive,
        metavar="N",
        help="leave out the middle of responses that are longer; default: the judge gets them whole",
    )
