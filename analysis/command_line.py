"""The command line of all analyses: their options, what they print and write, and how they end.

An analysis is a function of its options that returns a `Finding`. A full disk and other errors that a user can fix give
one line on stderr and exit code 2; a closed pipe is not an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.judge.settings import add_judge_arguments, judge_settings
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.exits import DISK_ERRORS, silence_if_closed
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.results.figures import SUFFIXES, write_figure
from meds_openrlhf.results.tables import write_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Finding:
    """What an analysis found: the text of its tables, their numbers, and a figure."""

    text: str
    numbers: Mapping[str, object]
    figure: Figure | None = None


@dataclass(frozen=True)
class Command:
    """`python -m analysis.NAME`: called with the words of a command line, it returns the exit code.

    ``add_arguments`` adds the options of ``analyse``, by the names of its parameters; one that is not given has the
    parameter's default. ``files`` names the figure and the numbers. An analysis that is ``judged`` has a judge's
    options too, as its parameter ``judge``.
    """

    name: str
    doc: str | None
    add_arguments: Callable[[argparse.ArgumentParser], None]
    analyse: Callable[..., Finding]
    files: str
    draws: bool = True
    judged: bool = False

    def __call__(self, words: Sequence[str] | None = None) -> int:
        """Run the analysis, print its text, and write its figure and its numbers."""
        summary = (self.doc or "").split("\n")[0]
        parser = argparse.ArgumentParser(
            prog=f"python -m analysis.{self.name}", description=summary, argument_default=argparse.SUPPRESS
        )
        self.add_arguments(parser)
        add, default = parser.add_argument, "default: %(default)s"
        if self.draws:
            file = Path(f"{self.files}.png")
            add("--figure", type=figure_path, default=file, help=f"PNG or SVG by suffix; {default}")
        add("--json", type=Path, default=Path(f"{self.files}.json"), help=f"the numbers of the table; {default}")
        if self.judged:
            add_judge_arguments(parser)
        given = vars(parser.parse_args(words))
        figure, numbers = given.pop("figure", None), given.pop("json")

        def run() -> None:
            if self.judged:
                given["judge"] = judge_settings(given)
            finding = self.analyse(**given)
            print(finding.text)
            if finding.figure is not None:
                write_figure(finding.figure, figure)
            write_numbers(finding.numbers, numbers)

        return exit_code_of(run)


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
        return 130
    return 0


def positive(text: str) -> int:
    """An argument type: an integer above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer above 0")
    return int(text)


def figure_path(text: str) -> Path:
    """An argument type: the path of a figure. Rejects other suffixes before any work is done."""
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {' or '.join(SUFFIXES)}")
    return path
