"""Where the scripts write: a figure in the format of its suffix, and the numbers of the table as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from meds_openrlhf.files import write_atomically

FIGURE_SUFFIXES = (".png", ".svg")


def add_result_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Add ``--figure`` and ``--json``, files in the working directory by default."""
    parser.add_argument(
        "--figure", type=figure_path, default=Path(f"{name}.png"), help="PNG or SVG by suffix; default: %(default)s"
    )
    parser.add_argument(
        "--json", type=Path, default=Path(f"{name}.json"), help="the numbers of the table; default: %(default)s"
    )


def figure_path(text: str) -> Path:
    """An argument type: the path of a figure. Rejects other suffixes before any work is done."""
    path = Path(text)
    if path.suffix not in FIGURE_SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {' or '.join(FIGURE_SUFFIXES)}")
    return path


def write_numbers(numbers: Mapping[str, object], path: Path) -> None:
    """Write the numbers as JSON. Raises ValueError for NaN, which JSON lacks; use None instead."""
    write_atomically(path, json.dumps(numbers, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
