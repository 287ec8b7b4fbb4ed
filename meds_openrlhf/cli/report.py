"""`meds report`: write one HTML file with the curves and the recurring errors of runs.

Write one HTML file about one or several runs, which any browser opens without a network: settings, curves of all
metrics, and the errors that the policy repeats, with example responses and layer logits. The runs are only read and
may still be training. Prints the file's path.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from meds_openrlhf.cli.parsers import add_command
from meds_openrlhf.paths import RunPaths


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "report", run, __doc__)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folder of a run, e.g. runs/my-run")
    parser.add_argument("--output", metavar="FILE", type=Path, help="file to write (default: report.html in first RUN)")


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Write the report and print its path."""
    from meds_openrlhf.report import write_report

    print(write_report(arguments.runs, arguments.output or RunPaths(arguments.runs[0]).report))
    return 0
