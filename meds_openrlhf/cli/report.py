"""`meds report`: write one HTML file with the curves and the recurring errors of runs.

Write one HTML file about one or several runs, which any browser opens without a network: settings, curves of all
metrics, and the errors that the policy repeats, with example responses and layer logits. Apart from the report,
nothing in the run folders is changed, and the runs may still be training. Prints the file's path.

Beside it, --export writes the prompts of a theme as a data set for `meds train` and `meds eval`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from meds_openrlhf.judge.settings import add_judge_options, judge_settings
from meds_openrlhf.options import add_command
from meds_openrlhf.paths import RunPaths


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = add_command(subparsers, "report", run, __doc__)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folder of a run, e.g. runs/my-run")
    output = "file to write (default: report.html in the first RUN)"
    parser.add_argument("--output", metavar="FILE", type=Path, help=output)
    export = "write the prompts of a theme, by its name or its place by size from 1, to a .jsonl file"
    parser.add_argument("--export", metavar=("THEME", "FILE"), nargs=2, help=export)
    add_judge_options(parser, "a language model that makes and names the themes (default: the words of responses do)")
    name_with = "the same as --judge-url: URL of the server with --judge-model, which makes and names the themes"
    parser.add_argument("--name-with", dest="judge_url", metavar="URL", default=argparse.SUPPRESS, help=name_with)


def run(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Write the report and print its path."""
    from meds_openrlhf.report import write_report

    given = vars(arguments)
    judge = judge_settings(given) if any(name.startswith("judge_") for name in given) else None
    export = arguments.export and (arguments.export[0], Path(arguments.export[1]))
    output = arguments.output or RunPaths(arguments.runs[0]).report
    print(write_report(arguments.runs, output, judge=judge, export=export))
    return 0
