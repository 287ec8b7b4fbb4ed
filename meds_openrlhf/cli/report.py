"""`meds report`: write one HTML file for one or several runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from meds_openrlhf.paths import RunPaths


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "report",
        help="one HTML file: curves, and the atlas of recurring errors",
        description="Write one HTML file, to be opened in any browser without a network, of one or several runs: what "
        "was run, curves of all metrics, and the errors that the policy keeps making, with example responses and their "
        "layer logits. Only reads the runs, which may be going on. Prints the file's path.",
    )
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folder of a run, e.g. runs/my-run")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="file to write (default: report.html in the first RUN)"
    )
    parser.set_defaults(run=run, takes_overrides=False)


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Write the report and print its path."""
    from meds_openrlhf.report import write_report

    print(write_report(arguments.runs, arguments.output or RunPaths(arguments.runs[0]).report))
    return 0
