"""The command line of all analyses: their options, what they print and write, and how they end.

An analysis is a function of its options that returns a `Finding`. A full disk and other errors that a user can fix give
one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.files import DISK_ERRORS, PATH_ERRORS, UnusableFileError
from meds_openrlhf.judge.settings import add_judge_options, judge_settings
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.options import add_options
from meds_openrlhf.stats.presentation import SUFFIXES, write_figure, write_numbers


@dataclass(frozen=True)
class Finding:
    """What an analysis found: the text of its tables, their numbers, and a figure."""

    text: str
    numbers: Mapping[str, object]
    figure: Figure | None = None


@dataclass(frozen=True)
class Command:
    """`python -m analysis.NAME`: called with the words of a command line, it returns the exit code.

    The options are those that ``analyze`` declares, and a judge's if it has a parameter ``judge``. The name is also
    that of the files of the figure and the numbers.
    """

    name: str
    doc: str | None
    analyze: Callable[..., Finding]
    draws: bool = True

    def __call__(self, words: Sequence[str] | None = None) -> int:
        """Run the analysis, print its text, and write its figure and its numbers."""
        summary = (self.doc or "").split("\n")[0]
        parser = argparse.ArgumentParser(prog=f"python -m analysis.{self.name}", description=summary)
        add_options(parser, self.analyze)
        add, default = parser.add_argument, "(default: %(default)s)"
        if self.draws:
            file = Path(f"{self.name}.png")
            add("--figure", type=figure_path, default=file, help=f"PNG or SVG file for the figure {default}")
        add("--json", type=Path, default=Path(f"{self.name}.json"), help=f"JSON file for the table's numbers {default}")
        judged = "judge" in inspect.signature(self.analyze).parameters
        if judged:
            add_judge_options(parser)
        given = vars(parser.parse_args(words))
        figure, numbers = given.pop("figure", None), given.pop("json")

        def run() -> None:
            if judged:
                given["judge"] = judge_settings(given)
            finding = self.analyze(**given)
            print(finding.text)
            if finding.figure is not None:
                write_figure(finding.figure, figure)
            write_numbers(finding.numbers, numbers)

        return exit_code_of(run)


def exit_code_of(script: Callable[[], None]) -> int:
    """Run ``script`` and return the process's exit code; other errors are defects and propagate."""
    try:
        script()
    except (ConfigError, MemoryCorruptionError, OSError) as error:
        known = isinstance(error, UnusableFileError) or getattr(error, "errno", None) in (*DISK_ERRORS, *PATH_ERRORS)
        if isinstance(error, OSError) and not known:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def figure_path(text: str) -> Path:
    """An argument type: the path of a figure. Rejects other suffixes before any work is done."""
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {' or '.join(SUFFIXES)}")
    return path
